# The configuration of lit: `lit tests/lit`, with the lit of the virtual environment to test.
# A test is an .mlir file: the command, the input and what is expected in one place.

import importlib.metadata
import os
import sys
import tempfile

import lit.formats

here = os.path.dirname(__file__)

config.name = "remora"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = here  # noqa: F821
config.test_exec_root = os.path.join(tempfile.gettempdir(), f"remora-lit-{os.getuid()}")  # noqa: F821

# The Python that runs lit runs remora, installed or in src, and filecheck.
source = os.path.join(here, "..", "..", "src")
config.environment["PYTHONPATH"] = os.path.abspath(source)  # noqa: F821
config.environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # noqa: F821
config.substitutions += [  # noqa: F821
    (r"\bremora opt\b", f"{sys.executable} -m remora.cli opt"),
    (r"\bfilecheck\b", f"{sys.executable} -m filecheck"),
    (r"%passes", os.path.join(here, "Inputs", "passes.py")),
]

# "triton-3.7": what a test names that release cannot read.
release = ".".join(importlib.metadata.version("triton").split(".")[:2])
config.available_features.add(f"triton-{release}")  # noqa: F821
