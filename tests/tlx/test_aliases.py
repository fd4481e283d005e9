"""TLX under the names that existing kernels import, each case in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent


def run(code: str) -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names() -> None:
    assert (
        run("""
        import remora.tlx as ours
        ours.install_aliases()
        ours.install_aliases()
        import triton.language as tl
        import triton.language.extra.tlx as a
        import utlx_plugin as b
        import utlx_plugin.mem_ops
        from triton.language.extra import tlx as c
        from triton.language.extra.tlx import local_alloc, storage_kind as kind
        from triton.language.extra.tlx.types import buffered_tensor
        from utlx_plugin.mem_ops import local_view
        assert a is b is c is ours is tl.extra.tlx
        assert local_alloc is ours.local_alloc and local_view is ours.local_view
        assert kind is ours.storage_kind and buffered_tensor is ours.buffered_tensor
        print("served")
    """)
        == "served\n"
    )


def test_nothing_happens_unasked() -> None:
    assert (
        run("""
        import builtins, sys
        stock = builtins.__import__, list(sys.meta_path)
        import remora.tlx, triton
        for name in ("triton.language.extra.tlx", "utlx_plugin"):
            try:
                __import__(name)
                print(name)
            except ImportError:
                pass
        remora.tlx.install_aliases()
        import triton as view
        assert view is not triton and view.Config is not triton.Config
        remora.tlx.remove_aliases()
        assert (builtins.__import__, list(sys.meta_path)) == stock
        import triton as again
        assert again is triton
        try:
            import utlx_plugin
            print("still there")
        except ImportError:
            pass
        print("stock")
    """)
        == "stock\n"
    )


def test_names_that_are_missing() -> None:
    assert (
        run("""
        import remora.tlx as tlx
        from remora.errors import MissingImport, MissingWord
        tlx.install_aliases()
        for statement in ("from utlx_plugin import nothing",
                          "from triton.language.extra.tlx import nothing",
                          "import triton.language.extra.tlx.nothing",
                          "from utlx_plugin.nothing import x"):
            try:
                exec(statement)
                print("no error:", statement)
            except ImportError as error:
                assert isinstance(error, MissingImport), error
                assert "nothing is not implemented by Remora" in str(error), error
        try:
            tlx.nothing
        except MissingWord as error:
            assert "tlx.nothing is not implemented by Remora" in str(error)
        assert not hasattr(tlx, "nothing")
        print("refused")
    """)
        == "refused\n"
    )


def test_a_missing_word_in_a_kernel(tmp_path) -> None:
    file = tmp_path / "missing.py"
    file.write_text(
        "import triton\nimport remora.tlx as tlx\n\n\n"
        "@triton.jit\ndef kernel(x):\n    tlx.nothing(x)\n"
    )
    assert (
        run(f"""
        import sys
        sys.path[:0] = [{str(tmp_path)!r}, "."]
        import missing, triton
        from remora.errors import MissingWord
        from tlx.building import build
        try:
            build(missing.kernel, "cuda:90", x="*fp32")
        except Exception as error:
            assert "tlx.nothing" in str(MissingWord.of(error)), error
            # Triton 3.7 asks before it compiles, and knows no line then.
            if not triton.__version__.startswith("3.7."):
                assert "at 2:4" in str(error), error
        print("refused")
    """)
        == "refused\n"
    )


def test_the_real_package_is_not_hidden(tmp_path) -> None:
    (tmp_path / "utlx_plugin").mkdir()
    (tmp_path / "utlx_plugin" / "__init__.py").write_text("")
    assert (
        run(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import remora.tlx
        from remora.errors import ShadowedPackage
        try:
            remora.tlx.install_aliases()
        except ShadowedPackage as error:
            assert "utlx_plugin" in error.what and "utlx_plugin" in error.where
            print("refused")
        import utlx_plugin
        assert utlx_plugin.__file__.startswith({str(tmp_path)!r})
    """)
        == "refused\n"
    )


def test_triton_as_the_modules_of_a_script_see_it() -> None:
    assert (
        run("""
        import triton as stock
        from triton.runtime.autotuner import Config as StockConfig
        import remora.tlx as tlx
        tlx.install_aliases()
        import triton
        import triton.language as tl
        import triton.runtime.autotuner as autotuner
        from triton import Config, jit, cdiv
        from triton.runtime import Config as second
        from triton.runtime.jit import jit as third
        import triton.testing
        assert Config is second is autotuner.Config is triton.Config is tlx.Config
        assert jit is third is triton.jit is tlx.jit and cdiv is stock.cdiv
        assert triton.__version__ == stock.__version__ and "autotune" in dir(triton)
        assert isinstance(Config({}), StockConfig)
        assert stock.Config is StockConfig and stock.jit is not jit
        # Triton's own modules, and what they import late, are stock.
        exec("from triton import Config as inner", {"__name__": "triton.anything"}, found := {})
        assert found["inner"] is StockConfig

        from launching import Driver, Pointer
        from triton.backends.compiler import GPUTarget
        triton.runtime.driver.set_active(Driver(GPUTarget("cuda", 90, 32)))
        print("view")
    """)
        == "view\n"
    )
