"""What Remora knows of Triton: its releases, libtriton, and the one stage hook."""

from remora.host.bridge import (
    captured_stderr,
    convert_to_ttgir,
    generic_text,
    has_use_order,
    parse_file,
    parse_text,
    shuffle_uses,
)
from remora.host.hook import StageClient, install, uninstall
from remora.host.releases import TESTED, Features, features
from remora.host.targets import shared_memory

__all__ = [
    "TESTED",
    "Features",
    "StageClient",
    "captured_stderr",
    "convert_to_ttgir",
    "features",
    "generic_text",
    "has_use_order",
    "install",
    "parse_file",
    "parse_text",
    "shared_memory",
    "shuffle_uses",
    "uninstall",
]
