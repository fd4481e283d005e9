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
from remora.tlx.buffers import dtype_of, local_alloc, local_load, local_store, local_view
from remora.tlx.clusters import (
    cluster_barrier,
    cluster_cta_rank,
    cluster_size_1d,
    remote_shmem_store,
)
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.descriptors import (
    async_descriptor_load,
    async_descriptor_prefetch_tensor,
    async_descriptor_store,
    async_descriptor_store_wait,
    prefetch,
)
from remora.tlx.dots import async_dot, async_dot_wait
from remora.tlx.launch import Config, in_clusters, jit
from remora.tlx.storage import (
    StorageType,
    reuse_group,
    reuse_group_type,
    set_buffer_overlap,
    storage_alias_spec,
    storage_alias_spec_value,
)
from remora.tlx.tasks import async_task, async_task_replica_id, async_tasks
from remora.tlx.types import async_token, buffered_tensor, mbarrier, storage_kind
from remora.tlx.views import local_reinterpret, local_slice, local_trans, subslice
from remora.tlx_plugin import plugin

__all__ = [
    "Config",
    "alloc_barriers",
    "alloc_warp_barrier",
    "async_descriptor_load",
    "async_descriptor_prefetch_tensor",
    "async_descriptor_store",
    "async_descriptor_store_wait",
    "async_dot",
    "async_dot_wait",
    "async_load",
    "async_load_commit_group",
    "async_load_wait_group",
    "async_task",
    "async_task_replica_id",
    "async_tasks",
    "async_token",
    "barrier_arrive",
    "barrier_expect_bytes",
    "barrier_wait",
    "buffered_tensor",
    "cluster_barrier",
    "cluster_cta_rank",
    "cluster_size_1d",
    "dtype_of",
    "fence",
    "fence_async_shared",
    "in_clusters",
    "install_aliases",
    "jit",
    "local_alloc",
    "local_load",
    "local_reinterpret",
    "local_slice",
    "local_store",
    "local_trans",
    "local_view",
    "mbarrier",
    "named_barrier_arrive",
    "named_barrier_wait",
    "plugin",
    "prefetch",
    "remote_shmem_store",
    "remove_aliases",
    "reuse_group",
    "reuse_group_type",
    "set_buffer_overlap",
    "storage_alias_spec",
    "storage_alias_spec_type",
    "storage_alias_spec_type_class",
    "storage_kind",
    "subslice",
]

# The public names of the types of storage_alias_spec's value, which is a function's name.
storage_alias_spec_type = StorageType
storage_alias_spec_type_class = storage_alias_spec_value

plugin.activate()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'remora.tlx' has no attribute {name!r}")
    raise MissingWord(
        f"tlx.{name} is not implemented by Remora", hint="docs/tlx.md lists the words that are"
    )
