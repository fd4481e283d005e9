"""What launches refuse, which needs no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remora.errors import DriverError, KernelArgumentError
from remora.kernels.config import Config

torch = pytest.importorskip("torch")

COOPERATIVE = Config(128, 256, 64, 8, 4, 4, "cooperative", 2)


def product(order: str = "row-row", dtype: str = "float16", k: int = 256, at: int = 0) -> Any:
    from remora.kernels.operands import product_of

    kind = getattr(torch, dtype)
    a, b = (torch.zeros(256, k + 8).to(kind)[:, at : at + k] for _ in range(2))
    b = b.T.contiguous()
    a, b = (
        x.T.contiguous().T if by == "column" else x
        for x, by in zip((a, b), order.split("-"), strict=True)
    )
    return product_of(a, b, False, None)


def refused(text: str, given: Any, config: Config = COOPERATIVE) -> None:
    from remora.kernels.launches import specialized

    with pytest.raises(KernelArgumentError, match=text):
        specialized(given, config, None)  # type: ignore[arg-type]


def test_what_cannot_be_described() -> None:
    refused(r"a cannot be copied by descriptor: its strides are \(264, 1\)", product(at=1))
    refused("a is of torch.int8 and its rows are not", product("column-column", "int8"))
    refused("b is of torch.float32 and its columns are not", product("row-row", "float32"))
    refused("K is 0", product(k=0))
    for given in (product(at=1), product("column-column", "int8")):
        refused(r"way out: .*Config\(copies=True\)", given)


def test_shares_that_are_too_small() -> None:
    wide = replace(COOPERATIVE, cluster=(8, 1))
    refused(r"config.cluster\[0\]: each program would copy 64 bytes of a row", product(), wide)
    deep = replace(COOPERATIVE, cluster=(1, 8))
    text = r"config.cluster\[1\]: each program would copy 32 bytes of a row"
    refused(text, product("column-row"), deep)


@pytest.mark.parametrize(("given", "text"), [
    ({"schedule": "other"}, "there is no schedule 'other'"),
    ({"subtiles": 3}, "subtiles is 3"),
    ({"cluster": (3, 1)}, r"cluster is \(3, 1\)"),
    ({"cluster": (4, 4)}, r"cluster is \(4, 4\)"),
    ({"schedule": "pipelined", "late_store": True}, "need warps with tasks of their own"),
    ({"schedule": "pipelined", "cluster": (2, 1)}, "need warps with tasks of their own"),
    ({"schedule": "pingpong", "stream_k": True}, "consumers that share a tile"),
    ({"keep": "c"}, "keep is 'c'"),
])  # fmt: skip
def test_configurations_that_contradict(given: dict[str, Any], text: str) -> None:
    with pytest.raises(KernelArgumentError, match=text):
        replace(COOPERATIVE, **given)


def test_programs_have_as_many_tiles() -> None:
    from remora.kernels.launches import _even

    # Clusters of two on 132 multiprocessors: 16 rounds, 32 rounds, 55 rounds; one round.
    assert [_even(tiles, 66) for tiles in (1024, 2048, 3584, 52)] == [64, 64, 66, 52]
    assert _even(67, 66) == 66  # 34 would do, and leave half of the multiprocessors idle
    for tiles in range(1, 3000, 7):
        clusters = _even(tiles, 132)
        assert -(-tiles // clusters) == -(-tiles // min(tiles, 132))


def test_the_driver_does_not_say_which_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    from remora.kernels import launches

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuStreamGetCaptureInfo_v2(self, *arguments: Any) -> int:
            return 901  # the capture was invalidated

    monkeypatch.setattr(launches.ctypes, "CDLL", Driver)
    with pytest.raises(DriverError, match="cuStreamGetCaptureInfo_v2 gave error 901"):
        launches._capture_on(7)
