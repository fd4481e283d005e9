"""What clusters need of a kernel as a whole, put into its PTX.

Where a CTA reaches another's shared memory all threads of the cluster have to meet
before the end, those of tasks too. Triton makes the code with which tasks begin and
end after the last pass that Python can edit, so that the PTX is the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from remora.errors import PipelineError
from remora.tlx_plugin import MARK

_MARK = re.compile(re.escape(MARK) + r"(\d+) threads(?:, \d+)?")

#: An entry's body, with the braces.
_ENTRY = re.compile(
    r"^\.visible \.entry [^{]*^\{\n.*?// -- End function\n\}", re.MULTILINE | re.DOTALL
)

# Warps of tasks wait for work in a loop of their own, at whose head they give up registers and
# meet the program's own warps, which hand out work. They have to take part in the meetings before
# the first task between the two: the program's own warps wait for registers before they come.
_TASKS = """\t.reg .pred %task;
\t{{
\t.reg .b32 %thread;
\tmov.u32 %thread, %tid.x;
\tsetp.ge.u32 %task, %thread, {threads};
\t}}
"""

_TASK_MEETS = "\t@%task barrier.cluster.arrive.relaxed;\n\t@%task barrier.cluster.wait;\n"

_TASKS_MET = "\tsetp.ne.u32 %task, 0, 0;\n"

#: The loop's head: what is to be done is read from shared memory after a barrier.
_HANDED_OUT = re.compile(
    r"^[ \t]*barrier\.sync[ \t]+\d+;\n(?=(?:(?![ \t]*(?:barrier|bar)\.|\$L__BB).*\n)*?"
    r"[ \t]*ld\.shared\.[bsu]8 )",
    re.MULTILINE,
)

_ALL_MEET = "\tbarrier.cluster.arrive;\n\tbarrier.cluster.wait;\n"

#: The end of a function, with the release of tensor memory before it.
_END = (
    r"^(?:[^\n]*tcgen05\.dealloc\.[^\n]*\n(?:[ \t]*(?:(?:\.loc|//)[^\n]*)?\n|\$L__tmp\w+:\n)*)?"
    r"[ \t]*ret;"
)


def synchronise(text: str, compile_: Callable[[str], str]) -> str:
    """The stage ``ptx`` of a marked kernel: all its threads meet at the start and at the end."""
    return meeting(compile_(text))


def meeting(ptx: str) -> str:
    """See ``synchronise``. Where products are of two CTAs, so is the use of tensor memory.

    Raises:
        PipelineError: the PTX is not written as expected.
    """
    pairs = "tcgen05.mma.cta_group::2" in ptx
    if pairs:  # all instructions have to say the same
        ptx = re.sub(r"\b(tcgen05\.\w+\.cta_group)::1\b", r"\1::2", ptx)
    mark, entry = _MARK.search(ptx), _ENTRY.search(ptx)
    if mark is None or entry is None:
        raise PipelineError("the PTX has no entry that a cluster's CTAs meet in")
    head, body = entry[0].split("{\n", 1)
    threads = re.search(r"\.(?:reqntid|maxntid) (\d+)", head)
    # Two CTAs' tensor memory is given back when both are done with it.
    body = re.sub(_END, _ALL_MEET + r"\g<0>", body, flags=re.MULTILINE)
    if threads is None or int(threads[1]) > int(mark[1]):
        # Each meeting has a number: a compiler may write one twice.
        times = len({found[0] for found in _MARK.finditer(entry[0])})
        places = [found.start() for found in _HANDED_OUT.finditer(body)]
        if len(places) != 1:
            raise PipelineError(
                f"the PTX has {len(places)} places where tasks are handed out, not one"
            )
        meetings = times * _TASK_MEETS + _TASKS_MET
        body = body[: places[0]] + meetings + body[places[0] :]
        body = _TASKS.format(threads=mark[1]) + body
    if pairs:  # before both allocate tensor memory
        body = _ALL_MEET + body
    return ptx[: entry.start()] + head + "{\n" + body + ptx[entry.end() :]
