"""TLX as a plugin like any other: what the entry point names.

Beside the package and not in it: importing ``remora.tlx`` puts TLX in force,
finding out that it exists does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from remora.dsl.pipeline import LOWER_OPERATIONS, TRIGGER, lowering_pipeline
from remora.pipeline import PassRef, Pipeline, stock
from remora.plugins import Plugin

#: Targets with mbarriers, TMA, clusters and registers of a task's own.
FROM_HOPPER_ON = ("cuda:90", "cuda:100", "cuda:103")

#: Targets with tensor memory and ``tcgen05``.
BLACKWELL = ("cuda:100", "cuda:103")

OPERATIONS = (
    "alloc_barriers",
    "alloc_warp_barrier",
    "allocate_tensor_descriptor",
    "amd_iglp_opt",
    "amd_mfma_commit",
    "amd_mfma_layout",
    "amd_register_class_anchor",
    "amd_register_resident",
    "amd_sched_barrier",
    "amd_sched_group_barrier",
    "amd_scheduled_mfma",
    "amd_setprio",
    "assert_same_layout",
    "assume_uniform",
    "async_descriptor_load",
    "async_descriptor_prefetch_tensor",
    "async_descriptor_store",
    "async_descriptor_store_wait",
    "async_dot",
    "async_dot_scaled",
    "async_dot_wait",
    "async_load",
    "async_load_commit_group",
    "async_load_wait_group",
    "async_remote_shmem_copy",
    "async_remote_shmem_store",
    "async_store",
    "async_task",
    "async_task_replica_id",
    "async_tasks",
    "barrier_arrive",
    "barrier_expect_bytes",
    "barrier_wait",
    "buffer_atomic_add",
    "buffer_load",
    "buffer_load_to_local",
    "buffer_store",
    "clc_consumer",
    "clc_create_context",
    "clc_producer",
    "clock64",
    "cluster_barrier",
    "cluster_cta_rank",
    "cluster_size_1d",
    "dot_operand_layout",
    "dtype_of",
    "extract_slice",
    "fence",
    "fence_async_shared",
    "fence_mbarrier_init_cluster",
    "get_fp8_format_name",
    "local_alloc",
    "local_gather",
    "local_load",
    "local_reinterpret",
    "local_scatter",
    "local_slice",
    "local_store",
    "local_trans",
    "local_view",
    "make_tensor_descriptor",
    "named_barrier_arrive",
    "named_barrier_wait",
    "num_warps",
    "prefetch",
    "reinterpret_tensor_descriptor",
    "release_layout",
    "rematerialized_range",
    "remote_shmem_store",
    "remote_view",
    "require_layout",
    "set_buffer_overlap",
    "size_of",
    "slice_layout",
    "stoch_round",
    "storage_alias_spec",
    "subslice",
    "tcgen05_commit",
    "thread_id",
    "tmem_copy",
    "vote_ballot_sync",
    "warp_pipeline_stage",
    "warp_predicate",
    "warp_redux",
    "zeros",
)

outline = PassRef(
    "remora.tlx.lower.outline:OutlineTasks", trigger="remora:tlx.async_tasks", also=("remora.tlx",)
)
specialize = PassRef("remora.tlx.lower.specialize:SpecializeWarps", trigger="tlx.task = ")

pipeline = (
    lowering_pipeline("tlx", "remora.tlx")
    .insert(outline, at="ttir/start")
    .insert(specialize, after="ttgir/convert_to_ttgpuir")
    .check("llir", "remora.tlx.limits:check_memory", trigger=TRIGGER)
)

# Where stock Triton has given all descriptors their layouts.
fit = PassRef(
    "remora.tlx.lower.boxes:FitDescriptors",
    trigger="remora:tlx.async_descriptor_",
    also=("remora.tlx",),
)

descriptors = (
    Pipeline("tlx-descriptors")
    .insert(fit, after="ttgir/optimize_descriptor_encoding")
    .when(target="cuda")
)


# Stock Triton would give tasks other warps and registers than their author, and barriers count
# a task's threads.
as_written = (
    Pipeline("tlx-tasks-as-written")
    .disable("ttgir/optimize_partition_warps", trigger="tlx.task = ")
    .when(target=BLACKWELL)
)


# In the LLVM IR and the PTX of a kernel that reaches another CTA's memory, before the number
# of its own threads, a task's not counted.
MARK = "// remora: cluster of programs of "


def _synchronise(text: str, compile_: Callable[[str], str]) -> str:
    """Clusters: see ``remora.tlx.lower.assembled``."""
    from remora.tlx.lower.assembled import synchronise

    return synchronise(text, compile_)


clusters = (
    Pipeline("tlx clusters").override("ptx", _synchronise, trigger=MARK).when(target=FROM_HOPPER_ON)
)

_DOT = "remora:tlx.async_dot"
wait_each = PassRef("remora.tlx.lower.in_flight:WaitForEachProduct", trigger=_DOT)
keep = PassRef("remora.tlx.lower.in_flight:KeepProductsInFlight", trigger=_DOT)

# For remora.use, remora.attach and --with: a wait after each product, as the C++ plugin has;
# and the author's waits only.
wait_for_each_product = (
    Pipeline("wait for each product").insert(wait_each, at="ttgir/end").when(target="cuda:90")
)
products_in_flight = (
    Pipeline("products in flight")
    .insert(keep, after="ttgir/convert_to_ttgpuir")
    .when(target="cuda:90")
)


def _shorten(text: str, compile_: Callable[[str], str]) -> str:
    from remora.tlx.lower.matrix_descriptors import shortened

    return compile_(shortened(text))


#: Before Triton 3.9: see ``remora.tlx.lower.matrix_descriptors``. For kernels that are short of
#: registers; where there are enough the code is a few instructions longer.
short_descriptors = (
    Pipeline("short descriptors")
    .override("ptx", _shorten, trigger="wgmma.mma_async")
    .when(target="cuda:90", triton=("3.7.*", "3.8.*"))
)


def _without_accumulation_registers(text: str, compile_: Callable[[str], str]) -> str:
    """The stage ``amdgcn`` of a kernel none of whose registers are accumulation registers."""
    return compile_(re.sub(r'(?="amdgpu-flat-work-group-size")', '"amdgpu-agpr-alloc"="0" ', text))


#: CDNA: all registers of a thread are vector registers (LLVM, "User Guide for AMDGPU Backend":
#: amdgpu-agpr-alloc). Else LLVM divides them into halves where a product is, and sums that
#: vector instructions work on between products go to and fro.
sums_in_vector_registers = (
    Pipeline("sums in vector registers")
    .override("amdgcn", _without_accumulation_registers)
    .when(target="hip")
)

operands = PassRef(
    "remora.tlx.lower.operands:LoadAsOperands",
    trigger="remora:tlx.",
    also=("remora.tlx",),
)
waits = PassRef(
    "remora.tlx.lower.waits:WaitAsWritten",
    trigger="remora:tlx.async_load_wait_group",
    also=("remora.tlx",),
)

stages = replace(stock("amd.ttgpuir.warp_pipeline"), trigger="remora:tlx.warp_pipeline_stage")

cdna = (
    Pipeline("tlx cdna")
    .insert(operands, after="ttgir/accelerate_matmul")
    .insert(waits, at="ttgir/end")
    .insert(stages, at="ttgir/end")
    .when(target="hip")
)

plugin = Plugin(
    name="tlx",
    version="0.1.0",
    passes=(
        *(PassRef(LOWER_OPERATIONS), outline, specialize, fit),
        *(operands, waits, wait_each, keep),
    ),
    ops=tuple(f"remora.tlx:{name}" for name in OPERATIONS),
    pipelines=(pipeline, descriptors, as_written, clusters, cdna),
)
