"""The catalogue of errors: one class for each mistake, with what, where, and the way out.

Every error that Remora raises on purpose derives from :class:`RemoraError`.
Triton wraps what is raised while it reads a kernel into its own
``CompilationError``, which points at the kernel's line; the catalogue's error
is then its cause, and :meth:`RemoraError.of` finds it.
"""

from __future__ import annotations

from typing import Self


class RemoraError(Exception):
    """Base of the catalogue.

    what: the mistake, in a sentence.
    where: the place of it: a kernel's line, a pass, a stage, a file.
    hint: the way out.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if hint:
            lines.append(f"  way out: {hint}")
        # By name: a subclass may derive from an exception of Triton too.
        Exception.__init__(self, "\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.hint)

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """The first error of this class behind ``error``, or None.

        Follows ``__cause__`` and ``__context__``, so that it finds the
        catalogue's error behind Triton's ``CompilationError``.
        """
        seen: set[int] = set()
        current: BaseException | None = error
        while current is not None and id(current) not in seen:
            if isinstance(current, cls):
                return current
            seen.add(id(current))
            current = current.__cause__ or current.__context__
        return None


def _rebuild(cls: type[RemoraError], what: str, where: str, hint: str) -> RemoraError:
    error = cls.__new__(cls)
    RemoraError.__init__(error, what, where=where, hint=hint)
    return error


# --- host -------------------------------------------------------------------------------------


class UnsupportedTriton(RemoraError):
    """The installed Triton lacks what Remora stands on."""


class BridgeError(RemoraError):
    """libtriton did not do what the bridge asked of it."""


# --- ir ---------------------------------------------------------------------------------------


class IRParseError(RemoraError):
    """A module's text could not be read, by xDSL or by MLIR."""


# --- pipeline ---------------------------------------------------------------------------------


class AnchorNotFound(RemoraError):
    """An edit names a place that this target and release do not have."""


class PipelineError(RemoraError):
    """A pipeline or one of its edits makes no sense as written."""


class ContradictingEdits(PipelineError):
    """Two edits of one stage cannot both hold."""


class StageFailed(PipelineError, RuntimeError):
    """Stock passes failed in a stage that was edited, or after one that was; names the edits.

    Triton's own error for it is a RuntimeError.
    """


class OverrideReturned(PipelineError):
    """The function in the place of a stage returned another kind of value than the stage."""


class OverrideRaised(PipelineError):
    """The function in the place of a stage raised an exception (the cause of this error)."""


class PassError(RemoraError):
    """A Python pass failed. Carries ``reproducer``, the folder that shows it again."""

    reproducer: str = ""


class PassRaised(PassError):
    """The pass raised an exception (the cause of this error)."""


class PassReturned(PassError):
    """The pass returned something; a pass edits the module in place and returns None."""


class InvalidIR(PassError):
    """The pass left a module that the verifier refuses."""


class KernelRenamed(PassError):
    """The pass changed the names or the number of the module's public functions."""


class CompilationFailed(RemoraError):
    """Triton does not compile a kernel; carries what it says."""


# --- plugins ----------------------------------------------------------------------------------


class PluginError(RemoraError):
    """A plugin could not be loaded, or contradicts one that is."""


class NativeError(PluginError):
    """A native library was refused, before or instead of loading it."""


class NativeUnreadable(NativeError):
    """There is no such file, or it cannot be read."""


class NativeNotElf(NativeError):
    """The file is no ELF file."""


class NativeWrongArchitecture(NativeError):
    """The library is for another machine."""


class NativeDamaged(NativeError):
    """The library's headers or tables contradict each other or the file's size."""


class NativeNoEntryPoint(NativeError):
    """The library does not export ``tritonGetPluginInfo``."""


class NativeUnresolved(NativeError):
    """The library needs symbols, or libraries, that are not there."""


class NativeWrongApi(NativeError):
    """The library is written for another version of the plugin interface."""


class NativeWrongRelease(NativeError):
    """The library was built for another release of Triton, or does not say for which."""


class NativeMalformed(NativeError):
    """What the library announces is not well-formed."""


class NativeCrashed(NativeError):
    """The library ended the process that tried it."""


class NativeHung(NativeError):
    """The library did not return within the time limit."""


class NativeTooLate(NativeError):
    """This Triton loads native libraries while it is imported, and it has been."""


class NativeNameTaken(NativeError):
    """Another library that is loaded has the plugin's name, or one of its passes or operations."""


class NativeUnknown(NativeError):
    """A plugin, pass or operation is asked for that no native library announces."""


class NativeBuildMismatch(NativeError):
    """What a native plugin is to be built against is not what Triton's wheel was built from."""


# --- language ---------------------------------------------------------------------------------


class LanguageError(RemoraError):
    """A word of the language is used wrongly, at the kernel's line."""


class NotConstant(LanguageError):
    """An argument has to be known when the kernel is compiled."""


class WrongType(LanguageError):
    """An argument is not of the kind that the operation takes."""


class WrongShape(LanguageError):
    """Shapes that have to agree do not."""


class WrongDtype(LanguageError):
    """An element type that the operation, or the target, does not take."""


class UnsupportedByTarget(LanguageError):
    """The target lacks the operation."""


class MissingWord(LanguageError, AttributeError):
    """A word that the language does not have here."""


class MissingImport(LanguageError, ImportError):
    """A name is imported that the language does not have here."""


class ShadowedPackage(PluginError):
    """An alias would hide a package that is installed."""


class NeedsCompiler(LanguageError):
    """A word of the language was called outside a kernel."""


class ConflictingLayouts(LanguageError):
    """Two uses of one buffer, or of one value, want layouts that disagree."""


class LoopTypeChanged(LanguageError):
    """A loop or a branch gives a variable another type of buffer than it had."""


class AccumulatorInFlight(LanguageError):
    """A result of an asynchronous product is read before it was waited for."""


class OutOfSharedMemory(LanguageError):
    """The buffers of a kernel do not fit in the target's shared memory."""


class OutOfTensorMemory(LanguageError):
    """The buffers of a kernel need more columns of tensor memory than there are."""


class TasksDoNotFit(LanguageError):
    """Tasks together want more warps or registers than the machine has."""


class CannotCapture(LanguageError):
    """A task uses a value of the code around it that cannot be handed over."""


class StorageTooSmall(LanguageError):
    """The allocations that share memory take more than the author gave it."""


class BufferIndexError(LanguageError):
    """A buffer is asked for that the allocation does not have."""


class ReferenceRace(LanguageError):
    """Under the reference meaning two accesses to memory, of which one writes, have no order."""


class WaitNeverEnds(LanguageError):
    """Under the reference meaning a kernel waits for what nobody brings about."""


# --- kernels ----------------------------------------------------------------------------------


class KernelArgumentError(RemoraError):
    """An argument of a kernel's Python function does not fit."""


class DriverError(RemoraError, RuntimeError):
    """The GPU's driver did not do what a launch asked of it.

    Triton's and PyTorch's own errors for it are RuntimeErrors.
    """


# --- analysis ---------------------------------------------------------------------------------


class UnknownAssembly(RemoraError):
    """A text that the model of loops cannot read, or a machine whose rates it lacks."""
