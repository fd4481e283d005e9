"""TLX: explicit buffers, asynchronous copies and asynchronous matrix products.

``import remora.tlx as tlx`` puts the plugin in force for the process. A kernel
without a word of TLX compiles as if it were not there.
"""

from typing import Any

from remora.errors import MissingWord
from remora.tlx.aliases import install_aliases, remove_aliases
from remora.tlx.barriers import (
    alloc_barriers,
    alloc_warp_barrier,
    barrier_arrive,
    barrier_expect_bytes,
    barrier_wait,
    fence,
    fence_async_shared,
    named_barrier_arrive,
    named_barrier_wait,
)
from remora.tlx.buffer_ops import (
    buffer_atomic_add,
    buffer_load,
    buffer_load_to_local,
    buffer_store,
)
from remora.tlx.buffers import dtype_of, local_alloc, local_load, local_store, local_view
from remora.tlx.bulk import async_store
from remora.tlx.clusters import (
    async_remote_shmem_copy,
    async_remote_shmem_store,
    cluster_barrier,
    cluster_cta_rank,
    cluster_size_1d,
    fence_mbarrier_init_cluster,
    remote_shmem_store,
    remote_view,
)
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.descriptors import (
    async_descriptor_load,
    async_descriptor_prefetch_tensor,
    async_descriptor_store,
    async_descriptor_store_wait,
    prefetch,
)
from remora.tlx.device_descriptors import (
    allocate_tensor_descriptor,
    make_tensor_descriptor,
    reinterpret_tensor_descriptor,
)
from remora.tlx.dots import async_dot, async_dot_wait
from remora.tlx.gathers import local_gather, local_scatter
from remora.tlx.hints import (
    amd_iglp_opt,
    amd_register_class_anchor,
    amd_register_resident,
    amd_sched_barrier,
    amd_sched_group_barrier,
    amd_setprio,
    assume_uniform,
    rematerialized_range,
)
from remora.tlx.launch import Config, in_clusters, jit
from remora.tlx.launch_control import (
    CLCPipelineContext,
    clc_consumer,
    clc_create_context,
    clc_producer,
)
from remora.tlx.layouts import (
    amd_mfma_layout,
    assert_same_layout,
    dot_operand_layout,
    layout,
    layout_encoding,
    nv_mma_shared_layout_encoding,
    padded_shared_layout_encoding,
    release_layout,
    require_layout,
    shared_layout_encoding,
    shared_linear_layout_encoding,
    slice_layout,
    swizzled_layout,
    swizzled_shared_layout_encoding,
    tensor_memory_layout_encoding,
    tensor_memory_scales_layout_encoding,
    zeros,
)
from remora.tlx.mfma import amd_mfma_commit, amd_scheduled_mfma, extract_slice
from remora.tlx.predicates import warp_predicate
from remora.tlx.scaled import _to_mxfp8_block as _to_mxfp8_block
from remora.tlx.scaled import async_dot_scaled
from remora.tlx.stages import warp_pipeline_stage
from remora.tlx.storage import (
    StorageType,
    reuse_group,
    reuse_group_ir_type,
    reuse_group_type,
    set_buffer_overlap,
    storage_alias_spec,
    storage_alias_spec_value,
)
from remora.tlx.tasks import async_task, async_task_replica_id, async_tasks
from remora.tlx.tcgen05 import tcgen05_commit, tmem_copy
from remora.tlx.types import (
    async_token,
    buffered_tensor,
    mbarrier,
    remote_mbarrier,
    storage_kind,
    tensor_descriptor_ptr,
)
from remora.tlx.utilities import (
    clock64,
    get_fp8_format_name,
    is_hip,
    num_warps,
    size_of,
    stoch_round,
    thread_id,
    vote_ballot_sync,
    warp_all,
    warp_any,
    warp_redux,
)
from remora.tlx.views import local_reinterpret, local_slice, local_trans, subslice
from remora.tlx_plugin import (
    plugin,
    products_in_flight,
    short_descriptors,
    sums_in_vector_registers,
    wait_for_each_product,
)

__all__ = [
    "CLCPipelineContext",
    "Config",
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
    "async_token",
    "barrier_arrive",
    "barrier_expect_bytes",
    "barrier_wait",
    "buffer_atomic_add",
    "buffer_load",
    "buffer_load_to_local",
    "buffer_store",
    "buffered_tensor",
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
    "in_clusters",
    "install_aliases",
    "is_hip",
    "jit",
    "layout",
    "layout_encoding",
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
    "mbarrier",
    "named_barrier_arrive",
    "named_barrier_wait",
    "num_warps",
    "nv_mma_shared_layout_encoding",
    "padded_shared_layout_encoding",
    "plugin",
    "prefetch",
    "products_in_flight",
    "reinterpret_tensor_descriptor",
    "release_layout",
    "rematerialized_range",
    "remote_mbarrier",
    "remote_shmem_store",
    "remote_view",
    "remove_aliases",
    "require_layout",
    "reuse_group",
    "reuse_group_ir_type",
    "reuse_group_type",
    "set_buffer_overlap",
    "shared_layout_encoding",
    "shared_linear_layout_encoding",
    "short_descriptors",
    "size_of",
    "slice_layout",
    "stoch_round",
    "storage_alias_spec",
    "storage_alias_spec_type",
    "storage_alias_spec_type_class",
    "storage_kind",
    "subslice",
    "sums_in_vector_registers",
    "swizzled_layout",
    "swizzled_shared_layout_encoding",
    "tcgen05_commit",
    "tensor_descriptor_ptr",
    "tensor_memory_layout_encoding",
    "tensor_memory_scales_layout_encoding",
    "thread_id",
    "tmem_copy",
    "vote_ballot_sync",
    "wait_for_each_product",
    "warp_all",
    "warp_any",
    "warp_pipeline_stage",
    "warp_predicate",
    "warp_redux",
    "zeros",
]

# The public names of the types of storage_alias_spec's value, which is a function's name.
storage_alias_spec_type = StorageType
storage_alias_spec_type_class = storage_alias_spec_value

plugin.activate()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'remora.tlx' has no attribute {name!r}")
    from remora.dsl import kernel_line

    raise MissingWord(
        f"tlx.{name} is not implemented by Remora",
        where=kernel_line(),
        hint="docs/tlx.md lists the words that are",
    )
