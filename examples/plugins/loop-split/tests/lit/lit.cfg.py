# The configuration of lit: `lit examples/plugins/loop-split/tests/lit`.

import os
import sys
import tempfile

import lit.formats

here = os.path.dirname(os.path.abspath(__file__))

config.name = "remora-loop-split"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = here  # noqa: F821
config.test_exec_root = os.path.join(tempfile.gettempdir(), f"remora-loop-split-{os.getuid()}")  # noqa: F821

# Runs from the sources, the plugin installed or not: passes are named by their class.
package = os.path.join(here, "..", "..")
sources = (os.path.join(package, "src"), os.path.join(package, "..", "..", "..", "src"))
config.environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sources))  # noqa: F821
config.environment["TRITON_DEFAULT_FP_FUSION"] = "1"  # noqa: F821
config.substitutions += [  # noqa: F821
    (r"\bremora opt\b", f"{sys.executable} -m remora.cli opt"),
    (r"\bfilecheck\b", f"{sys.executable} -m filecheck"),
    (r"%split", "remora_loop_split.split:SplitLoops"),
]
