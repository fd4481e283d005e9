"""TLX: explicit buffers, asynchronous copies and asynchronous matrix products.

``import remora.tlx as tlx`` puts the plugin in force for the process. A kernel
without a word of TLX compiles as if it were not there.
"""

from remora.tlx.buffers import dtype_of, local_alloc, local_load, local_store, local_view
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.dots import async_dot, async_dot_wait
from remora.tlx.storage import (
    StorageType,
    reuse_group,
    reuse_group_type,
    set_buffer_overlap,
    storage_alias_spec,
    storage_alias_spec_value,
)
from remora.tlx.types import async_token, buffered_tensor, storage_kind
from remora.tlx.views import local_reinterpret, local_slice, local_trans, subslice
from remora.tlx_plugin import plugin

__all__ = [
    "async_dot",
    "async_dot_wait",
    "async_load",
    "async_load_commit_group",
    "async_load_wait_group",
    "async_token",
    "buffered_tensor",
    "dtype_of",
    "local_alloc",
    "local_load",
    "local_reinterpret",
    "local_slice",
    "local_store",
    "local_trans",
    "local_view",
    "plugin",
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
