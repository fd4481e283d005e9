"""Benchmarks, each a command: ``python -m benchmarks.gemm``, or ``python benchmarks/gemm.py``."""

import sys
from pathlib import Path

# Both ways to start one find the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))
