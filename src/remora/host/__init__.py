"""What Remora knows of Triton: its releases, libtriton, and the one stage hook."""

from remora.host.bridge import captured_stderr, generic_text, parse_file, parse_text
from remora.host.hook import StageClient, install, uninstall
from remora.host.releases import TESTED, Features, features

__all__ = [
    "TESTED",
    "Features",
    "StageClient",
    "captured_stderr",
    "features",
    "generic_text",
    "install",
    "parse_file",
    "parse_text",
    "uninstall",
]
