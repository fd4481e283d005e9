"""Pipelines in ``torch.compile``, by what the kernels compute.

The pass is ``Multiply``: where it took part, ``+ 3`` is ``* 3``. What needs no GPU
is in ``tests/test_inductor.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from compiling import SEEN, Look, Multiply  # noqa: E402

import remora  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

TIMES = remora.Pipeline("times").insert(Multiply(), at="ttir/end")
SIZE = 1024


def new_kernel() -> Any:
    @triton.jit
    def add_three(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + 3.0, at < n)

    return add_three


CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256}, num_warps=8)]
PLAIN, OWN = new_kernel(), remora.attach(TIMES)(new_kernel())
OVER = remora.attach(TIMES)(triton.autotune(CONFIGS, key=["n"])(new_kernel()))
UNDER = triton.autotune(CONFIGS, key=["n"])(remora.attach(TIMES)(new_kernel()))


def launch(kernel: Any, x: Any, **given: int) -> Any:
    """On each element of ``x``; given: BLOCK, where no autotuner chooses it."""
    out = torch.empty_like(x)
    n = x.numel()
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, **given)
    return out


def of_inductor(x: Any) -> Any:
    """One kernel of Inductor's."""
    return torch.sin(x) + 3.0


def mixed(x: Any) -> Any:
    """Inductor's, the user's with a pipeline of its own, Inductor's."""
    return torch.cos(launch(OWN, torch.sin(x) + 3.0, BLOCK=128)) + 3.0


def numbers() -> Any:
    return torch.linspace(0.5, 1.5, SIZE, device="cuda")


def close(result: Any, expected: Any) -> bool:
    return bool(torch.allclose(result, expected, rtol=1e-4, atol=1e-5))


@pytest.fixture(scope="module", autouse=True)
def _works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This PyTorch with this Triton, without Remora; caches of Inductor's of our own."""
    folder = tmp_path_factory.mktemp("inductor")
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    try:
        stock = torch.compile(lambda x: launch(PLAIN, torch.sin(x), BLOCK=128))(numbers())
    except Exception as error:
        patch.undo()
        if remora.RemoraError.of(error) is not None:
            raise
        pytest.skip(
            f"PyTorch {torch.__version__} does not compile with Triton {triton.__version__}: "
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
        )
    assert close(stock, torch.sin(numbers()) + 3)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Dynamo keeps no compiled function; Inductor's caches stay."""
    torch._dynamo.reset()


def test_without_torch_compile() -> None:
    x = numbers()
    assert close(launch(OWN, x, BLOCK=128), x * 3)
    assert close(launch(PLAIN, x, BLOCK=128), x + 3)


@pytest.mark.parametrize(
    ("kernel", "given"),
    [(OWN, {"BLOCK": 128}), (OVER, {}), (UNDER, {})],
    ids=["jit", "over", "under autotune"],
)
def test_a_users_kernel_keeps_its_pipeline(kernel: Any, given: dict[str, int]) -> None:
    x = numbers()
    compiled = torch.compile(lambda x: launch(kernel, torch.sin(x) + 3.0, **given), fullgraph=True)
    for _ in range(3):
        assert close(compiled(x), (torch.sin(x) + 3) * 3)  # Inductor's own kernel still adds
    assert close(launch(PLAIN, x, BLOCK=128), x + 3)


def test_beside_the_same_kernel_without_one() -> None:
    x = numbers()
    compiled = torch.compile(
        lambda x: launch(PLAIN, x, BLOCK=128) + launch(OWN, x, BLOCK=128), fullgraph=True
    )
    assert close(compiled(x), (x + 3) + x * 3)


def test_with_compile_workers() -> None:
    """Workers know the pipeline not: what they leave is compiled here."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    x = numbers()
    with config.patch(compile_threads=4, fx_graph_cache=False):
        AsyncCompile.wait_pool_ready()
        assert AsyncCompile.use_process_pool()
        compiled = torch.compile(
            lambda x: launch(OWN, torch.exp(x) + 3.0, BLOCK=128), fullgraph=True
        )
        assert close(compiled(x), (torch.exp(x) + 3) * 3)


def test_under_use_and_not_after() -> None:
    """The same function, in turn, over the same caches of Inductor."""
    x = numbers()
    for used in (False, True, False, True):
        torch._dynamo.reset()
        compiled = torch.compile(mixed, backend=remora_backend())
        if used:
            with remora.use(TIMES):
                result = compiled(x)
            expected = torch.cos(torch.sin(x) * 3 * 3) * 3
        else:
            result = compiled(x)
            expected = torch.cos((torch.sin(x) + 3) * 3) + 3
        assert close(result, expected), used
        assert close(compiled(x), expected)  # compiled once: it stays what it is


def test_without_the_backend_after_it() -> None:
    x = numbers()
    with remora.use(TIMES):
        assert close(torch.compile(of_inductor, backend=remora_backend())(x), torch.sin(x) * 3)
    torch._dynamo.reset()
    assert close(torch.compile(of_inductor)(x), torch.sin(x) + 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "reduce-overhead"},  # CUDA graphs
        {"options": {"coordinate_descent_tuning": True}},  # compiles anew while it runs
        {"options": {"max_autotune": True}},
        {"dynamic": True},
    ],
    ids=lambda settings: "-".join(map(str, settings)),
)
def test_modes_and_options(settings: dict[str, Any]) -> None:
    x = numbers()
    compiled = torch.compile(mixed, backend=remora_backend(), **settings)
    with remora.use(TIMES):
        compiled(x)
    for _ in range(3):
        assert close(compiled(x), torch.cos(torch.sin(x) * 3 * 3) * 3)


def test_a_backward_graph_that_is_compiled_later() -> None:
    look = remora.Pipeline("look").insert(Look("seen"), at="ttir/end")
    x = numbers().requires_grad_()
    SEEN.clear()
    with remora.use(look):
        y = torch.compile(lambda x: torch.sin(x) * x, backend=remora_backend())(x).sum()
    assert SEEN
    y.backward()
    assert len(SEEN) >= 2  # one for each graph
    assert close(x.grad, torch.cos(x) * x + torch.sin(x))


def test_in_other_processes(tmp_path: Path) -> None:
    """Over caches on disk: each process gets its own kernels, and from the cache at last."""
    seen = [in_a_process(tmp_path, used) for used in (True, False, True)]
    assert [s["result"] for s in seen] == ["times", "plus", "times"]
    assert [s["own"] for s in seen] == ["times"] * 3
    assert [bool(s["hits"]) for s in seen] == [False, False, True]


def in_a_process(folder: Path, used: bool) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, str(int(used))],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def remora_backend() -> Any:
    """As a function: an installed Remora is found under its name, too."""
    from remora.inductor import backend

    return backend


def main(used: bool) -> None:
    """In a process of its own: what Inductor's kernel and an attached one did."""
    from torch._dynamo.utils import counters

    x = numbers()
    compiled = torch.compile(of_inductor, backend=remora_backend())
    if used:
        with remora.use(TIMES):
            result = compiled(x)
    else:
        result = compiled(x)
    of_caches = ("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit")
    hits = sum(counters[group][name] for group, name in of_caches)
    own = torch.compile(lambda x: launch(OWN, x, BLOCK=128), fullgraph=True)(x)
    outcomes = {"plus": (torch.sin(x) + 3, x + 3), "times": (torch.sin(x) * 3, x * 3)}
    found: dict[str, Any] = {"hits": hits}
    for name, (of_result, of_own) in outcomes.items():
        found |= {"result": name} if close(result, of_result) else {}
        found |= {"own": name} if close(own, of_own) else {}
    print(json.dumps(found))


if __name__ == "__main__":
    main(bool(int(sys.argv[1])))
