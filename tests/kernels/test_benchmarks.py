"""What the benchmarks do with what was measured, and with contestants that fail. No GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import counters
import gemm
import roofline
import sweep
from gemm import Case, Contestant

#: In the place of a Python that measures: what it does depends on the product's rows.
STANDIN = """#!{python}
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "versions":
        print("@" + json.dumps({{"triton": "0"}}), flush=True)
        continue
    m = request["case"]["m"]
    if m == 1:
        sys.exit(7)
    if m == 2:
        time.sleep(60)
    if m == 3:
        print("@" + json.dumps({{"error": "CUDA error: an illegal address"}}), flush=True)
        break
    print("something else, " * 9999, flush=True)
    answer = {{"ms": 1.0}} if request["do"] == "measure" else {{"rel_err": 0.0}}
    print("@" + json.dumps(answer), flush=True)
"""


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "python"
    file.write_text(STANDIN.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setattr(gemm, "PATIENCE", 2.0)
    found = Contestant("remora", str(file), str(tmp_path), str(tmp_path))
    yield found
    found.end()


@pytest.mark.parametrize(("rows", "error"), [
    (1, "the process ended with 7"), (2, "no answer in 2 s"), (3, "an illegal address"),
])  # fmt: skip
def test_contestants_that_fail(standin: Contestant, rows: int, error: str) -> None:
    """It has a row that says so, and takes part in the next product."""
    good, bad = Case(128, 128, 128), Case(rows, 128, 128)
    for case in (good, bad, good):
        (row,) = gemm.compare("announced", case, [standin], 2, 1.0)
        assert (error in row["error"]) if case is bad else (row["ms"] == 1.0)
        assert gemm.line(row)


def measured() -> dict[str, Any]:
    """As ``gemm`` writes it: ours in 0.9 of the library's time, of the first product in 1.1."""
    rows = []
    for case in gemm.SUITES["announced"]:
        base, ours = (case.flops / 4.5e11, 1.1) if case.m == 128 else (case.flops / 6e11, 0.9)
        for name, ms in (("cublas", base), ("remora", base * ours)):
            sample = {"ms": ms, "joules": 6.0, "watts": 690.0, "clock_mhz": 1400.0}
            row = {"case": asdict(case), "contestant": name, "samples": [sample], "rel_err": 0.0}
            gemm.summarize(case, row)
            rows.append({**row, "ratio": base / ms})
    return {"machine": {"gpu": "NVIDIA H200", "triton": "3.9.0"}, "rows": rows}


def test_goals() -> None:
    found = gemm.goals(measured()["rows"])
    assert found[0].endswith("0.909 of cuBLAS, short of 1.08")
    assert all("1.111 of cuBLAS, reached" in line for line in found[1:])


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, their parts and counters of each product, from the files that the commands write."""
    result = measured()
    halves = [
        {"case": r["case"], "contestant": r["contestant"], "whole": r["samples"],
         "half": [{**r["samples"][0], "ms": r["ms"] * 0.507}]}
        for r in result["rows"]
    ]  # fmt: skip
    counters = [
        {"case": r["case"], "contestant": r["contestant"], "kernels": [
            {"Kernel Name": "gemm", "gpu__time_duration.sum": "9,000,000",
             "dram__bytes_read.sum": "2500000000",
             "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "3.5"}
        ]}
        for r in result["rows"]
    ]  # fmt: skip
    found = {
        "machine": result["machine"], "limits": {"power_w": 700.0, "clock_mhz": 1980.0},
        "ceilings": {"copy": 4.3e12, "units": 132, "zeros": {"float16": {"tflops": 880.0}}},
        "halves": halves, "counters": counters,
    }  # fmt: skip
    files = [tmp_path / "gemm.json", tmp_path / "measured.json"]
    for file, values in zip(files, (result, found), strict=True):
        file.write_text(json.dumps(values))
    out = tmp_path / "page"
    monkeypatch.setattr(sys, "argv", ["roofline", "page", *map(str, files), "--out", str(out)])
    roofline.main()
    text = out.with_suffix(".md").read_text()
    assert text.count("| remora |") == text.count("| cublas |") == 6
    # 2 x 0.507 of the time less the time is outside of the loop: 1.4 %.
    rows = [line.split(" | ") for line in text.splitlines() if line.count(" | ") == 13]
    assert [cells[9] for cells in rows[1:]] == ["1.4%"] * 12
    assert text.count("remora: ms 9, GB from memory 2.5, stalled: wait 3.5") == 6
    assert out.with_suffix(".svg").exists()
    gemm.plot(result, tmp_path / "plot")
    assert (tmp_path / "plot.png").exists()


def test_loops_that_are_timed() -> None:
    """A kernel that reads the clock around another one's body still fits its arguments."""
    pytest.importorskip("torch")
    import loop_rates
    from tlx.building import build

    compiled = build(
        loop_rates.timed_specialized, "cuda:90", a_desc="tensordesc<fp16[64,64]>",
        b_desc="tensordesc<fp16[64,256]>", c_desc="tensordesc<fp16[64,128]>", t_ptr="*i64",
        M="i32", N="i32", K="i32", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, STAGES=4, SUBTILES=2,
        PINGPONG=False,
    )  # fmt: skip
    assert compiled.asm["ptx"].count("%clock64") == 2


#: In the place of ncu: one part of two kernels, and one that it did not come to.
NCU = """#!{python}
import sys
if "--query-metrics" in sys.argv:
    print("gpu__time_duration x")
    sys.exit()
assert "gpu__time_duration.sum" in sys.argv[sys.argv.index("--metrics") + 1].split(",")
print("==PROF== something else")
print('"ID","Kernel Name","gpu__time_duration.sum","{stall}_wait_per_issue_active.ratio"')
print('"","","ns","inst"')
print('"0","part_begins","1,000","0"')
print('"1","void ns::forward<int>(float)","3,000,000","2.5"')
print('"2","tiny","1,000","0"')
print('"3","part_begins","1,000","0"')
"""


def test_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ncu"
    file.write_text(NCU.format(python=sys.executable, stall=counters.STALL))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["counters", "--suites", "triangle", "--out",
                                      str(tmp_path / "found")])  # fmt: skip
    monkeypatch.setattr(counters.machine, "record", lambda: {"machine": {"gpu": "G", "triton": 0}})
    counters.main()
    text = (tmp_path / "found.md").read_text()
    assert "| 256, 2, 128 bf16 | remora | forward | 3 |" in text
    assert "| wait 2.5 |" in text.replace("  ", " ")
    assert "tiny" not in text
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="triangle: ncu is not installed"):
        counters.main()


def test_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as ``matmul`` sees them, what is compiled for them, and the rows of the table."""
    device = sweep.tuning.Device("NVIDIA H200", "cuda:90", 132)
    monkeypatch.setattr(sweep.tuning, "this_device", lambda: device)
    cases = [case for suite in gemm.SUITES.values() for case in suite]
    for case in cases:
        problem = sweep.problem_of(case)
        uneven = case.k % 16 != 0 or (case.dtype == "float32" and case.orders[1] == "row")
        assert problem.described == (not uneven)
        assert problem.out_dtype == (case.dtype if problem.size > 1 else problem.out_dtype)
    few = [case for case in cases if case.m <= 64]
    pairs = [(case, c) for case in few for c in sweep.configurations(case, 3, {})]
    assert len(sweep.distinct(pairs)) < len(pairs) / 2
    config = {**pairs[0][1].__dict__, "block_n": 128}
    given = {str(few[0]): [config]}
    assert sweep.configurations(few[0], 3, given)[1:] == [sweep.tuning.config_of(config)]

    def product(case: Case, *seconds: float) -> dict[str, Any]:
        rows = [
            {"config": {**config, "stages": i}, "seconds": s, "samples": [9.0, s], "ratio": 1 / s,
             "error": 0.0, "estimate": s}
            for i, s in enumerate(seconds)
        ]  # fmt: skip
        return {
            "case": asdict(case), "problem": asdict(sweep.problem_of(case)), "rows": rows,
            "cublas": {"seconds": 1.0}, "chosen": rows[1]["config"],
        }  # fmt: skip

    found = [product(few[0], 3.0, 2.0), product(gemm.SUITES["epilogue"][0], 1.0, 2.0)]
    assert sweep.summary(found[0]).count(" * 0.500") == 1
    (row,) = sweep.fastest({"products": found})
    assert (row["config"]["stages"], row["seconds"]) == (1, 2.0)
