"""What the model of loops says of assembly: small pieces by hand, then whole kernels."""

from __future__ import annotations

import json

import pytest
import triton
from kernels.test_specialized_code import COOPERATIVE, product

from remora.analysis import disassemble, model, of_kernel, read, resources
from remora.analysis.amdgcn import mfma_cycles
from remora.errors import UnknownAssembly
from remora.host.targets import gpu_target
from remora.kernels.gemm_cdna import gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_stock import gemm_stock
from remora.kernels.matmul import Config, hopper_config
from remora.kernels.offline import source

PTX = """
.version 8.7
.target sm_90a
.extern .shared .align 16 .b8 smem[];
.visible .entry kernel(.param .u64 a, .param .u32 n)
.reqntid 128
{{
	ld.param.b32 %r9, [n];
	mov.u32 %r1, %tid.x;
	mov.b32 %r8, smem;
{address}
	add.s32 %r3, %r8, %r2;
$L__BB0_1:
{body}
	add.s32 %r9, %r9, -1;
	setp.ne.b32 %p1, %r9, 0;
	@%p1 bra $L__BB0_1;
	ret;
}}
"""

AMD = """
	.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
	.text
kernel:
{address}
.LBB0_1:
{body}
	s_add_i32 s0, s0, -1
	s_cmp_lg_u32 s0, 0
	s_cbranch_scc1 .LBB0_1
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel kernel
	.max_flat_workgroup_size: 256
	.vgpr_count: 128
"""


def only_loop(text: str):
    (loop,) = model(read(text)).loops
    return loop


@pytest.mark.parametrize(
    ("address", "cycles"),
    [
        ("shl.b32 %r2, %r1, 4;", 4),  # 16 bytes a lane, in a row
        ("shl.b32 %r2, %r1, 7;", 32),  # a column of rows of 128 bytes
        # the same column, swizzled
        ("and.b32 %r4, %r1, 7; shl.b32 %r5, %r4, 4; shl.b32 %r6, %r1, 7;xor.b32 %r2, %r5, %r6;", 4),
        ("mul.lo.s32 %r2, %r1, 144;", 4),  # rows padded by 16 bytes
        ("shl.b32 %r2, %r1, 5;", 8),
    ],
)  # fmt: skip
def test_banks_of_nvidia(address: str, cycles: int) -> None:
    """The turns that 16-byte accesses take: an eighth of the lanes at a time, 32 banks."""
    loop = only_loop(PTX.format(address=address, body="ld.shared.v4.b32 {%r5,%r6,%r7,%r8}, [%r3];"))
    assert loop.cycles["shared memory"] == cycles * 4  # warps
    assert loop.conflicts == (cycles - 4) * 4
    assert loop.unknown == 0
    assert loop.widths == {"shared read": {"16": 1}}
    assert loop.shared == {"read": 2048}


def test_an_address_that_was_loaded_is_not_known() -> None:
    loaded = "ld.global.b32 %r2, [%rd1];"
    loop = only_loop(PTX.format(address=loaded, body="ld.shared.b32 %r5, [%r3];"))
    assert loop.unknown == 1
    assert loop.conflicts == 0


@pytest.mark.parametrize(
    ("arch", "address", "cycles"),
    [
        ("gfx942", "v_lshlrev_b32_e32 v1, 4, v0", 8),
        ("gfx950", "v_lshlrev_b32_e32 v1, 4, v0", 4),
        ("gfx942", "v_lshlrev_b32_e32 v1, 7, v0", 64),
        ("gfx942", "v_mul_u32_u24_e32 v1, 0x90, v0", 8),
        # rows of 64 bytes, as an MFMA of 16 rows reads them: every other row shares its banks
        ("gfx942", "v_and_b32_e32 v2, 15, v0\n\tv_lshrrev_b32_e32 v3, 4, v0\n\t"
                   "v_lshlrev_b32_e32 v3, 4, v3\n\tv_lshl_or_b32 v1, v2, 6, v3", 16),
    ],
)  # fmt: skip
def test_banks_of_amd(arch: str, address: str, cycles: int) -> None:
    """gfx942: eight lanes at a time over 32 banks; gfx950: sixteen over 64."""
    body = "\tds_read_b128 v[4:7], v1 offset:64"
    loop = only_loop(AMD.format(arch=arch, address=f"\t{address}", body=body))
    assert loop.cycles["shared memory"] == cycles * 4


@pytest.mark.parametrize(
    ("op", "arch", "cycles"),
    [
        ("v_mfma_f32_32x32x8_f16", "gfx942", 32),
        ("v_mfma_f32_16x16x16_bf16", "gfx942", 16),
        ("v_mfma_f32_32x32x16_fp8_fp8", "gfx942", 32),
        ("v_mfma_f32_32x32x2_f32", "gfx942", 64),
        ("v_mfma_f64_16x16x4_f64", "gfx942", 32),
        ("v_mfma_f32_32x32x16_f16", "gfx950", 32),
        ("v_mfma_f32_16x16x32_bf16", "gfx950", 16),
        ("v_mfma_scale_f32_32x32x64_f8f6f4", "gfx950", 64),
    ],
)
def test_matrix_instructions_of_amd(op: str, arch: str, cycles: int) -> None:
    """As LLVM's scheduling model has them; peaks are those of the whitepapers."""
    assert mfma_cycles(op, f"hip:{arch}")[0] == cycles


def test_fp4_takes_half_of_fp8() -> None:
    op = "v_mfma_f32_32x32x64_f8f6f4"
    assert mfma_cycles(op, "hip:gfx950", "v[0:15] cbsz:4 blgp:4")[0] == 32
    assert mfma_cycles(op, "hip:gfx950", "v[0:15] cbsz:4 blgp:1")[0] == 64


def test_peaks() -> None:
    """FLOP a cycle of a compute unit: AMD CDNA 3 and 4 whitepapers."""
    for op, arch, peak in (
        ("v_mfma_f32_32x32x8_f16", "gfx942", 2048),
        ("v_mfma_f32_32x32x16_fp8_fp8", "gfx942", 4096),
        ("v_mfma_f32_32x32x16_f16", "gfx950", 4096),
        ("v_mfma_f32_16x16x128_f8f6f4", "gfx950", 8192),
    ):
        cycles, flops = mfma_cycles(op, f"hip:{arch}")
        assert 4 * flops / cycles == peak, op


def test_waits_barriers_and_spills() -> None:
    body = """
	s_waitcnt vmcnt(2) lgkmcnt(0)
	s_barrier
	scratch_load_dword v4, off, s1
	v_exp_f32_e32 v5, v4
	v_add_f32_e32 v5, v5, v4
	buffer_load_dwordx4 v6, s[4:7], 0 offen lds
"""
    loop = only_loop(AMD.format(arch="gfx950", address="", body=body))
    assert loop.waits == ["vmcnt(2) lgkmcnt(0)"]
    assert (loop.barriers, loop.spills) == (1, 1)
    assert loop.cycles["vector"] == 16 + 4
    assert loop.global_["read"] == 4 * 64 * (4 + 16)
    assert loop.shared == {"copied": 4 * 64 * 16}


def test_a_loop_that_waits_is_no_loop() -> None:
    body = """
	ld.shared.b32 %r5, [%r3];
$wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r4;
	@!%p2 bra.uni $wait;
"""
    loop = only_loop(PTX.format(address="shl.b32 %r2, %r1, 2;", body=body))
    assert loop.waits == ["mbarrier"]


def compiled(kernel, config: Config, target: str):
    return triton.compile(
        source(kernel, config), target=gpu_target(target), options={"num_warps": config.num_warps}
    )


def test_the_pipelined_product_for_hopper() -> None:
    """128 x 256 x 64 in fp16: 1024 cycles of the tensor cores; a copy and a product in flight."""
    kernel = compiled(gemm_pipelined, hopper_config(8192, 8192, 8192, 2), "cuda:90")
    found = of_kernel(kernel)
    (loop,) = found.loops
    assert loop.flops == 2 * 128 * 256 * 64
    assert loop.cycles["matrix"] == 1024
    assert loop.waits == ["copies <= 1", "products <= 1"]
    assert loop.global_ == {"read": (128 + 256) * 64 * 2}
    # A and B once for each warp group, and what is copied.
    assert loop.shared == {"copied": 49152, "matrix operands": 2 * (64 + 256) * 64 * 2}
    assert 0 < found.registers <= 255
    assert found.occupancy == 1
    assert found.spills == 0
    # The disassembly has the same products, in one loop.
    registers, _ = resources(kernel.asm["cubin"])
    (machine_loop,) = model(read(disassemble(kernel.asm["cubin"]), registers=registers)).loops
    assert machine_loop.flops == loop.flops
    assert machine_loop.cycles["matrix"] == 1024
    assert machine_loop.warps == loop.warps == 8
    # Issue slots are those of the machine's code.
    assert loop.cycles["issue"] == machine_loop.cycles["issue"] == 2 * loop.issue


def test_tasks_stand_beside_each_other() -> None:
    """Two consumers with half of the rows each, and a producer whose bytes its barrier says."""
    kernel = product(COOPERATIVE)
    found = of_kernel(kernel)
    products = [loop for loop in found.loops if loop.flops]
    assert [loop.cycles["matrix"] for loop in products] == [512, 512]
    assert found.together["matrix"] == 1024
    (producer,) = (loop for loop in found.loops if loop.global_)
    assert producer.global_ == {"read": 49152}
    assert producer.warps == 1


def test_tcgen05_shapes_are_read_from_its_descriptor() -> None:
    config = Config(128, 128, 64, 8, 3, 4)
    kernel = compiled(gemm_stock, config, "cuda:100")
    for text in (kernel.asm["ptx"], disassemble(kernel.asm["cubin"])):
        (loop,) = model(read(text)).loops
        assert loop.flops == 2 * 128 * 128 * 64
        assert loop.cycles["matrix"] == 256


def test_the_product_for_cdna_4() -> None:
    """256 x 256 x 64 in fp16 by eight waves."""
    config = Config(128, 256, 64, 8, 2, 8)
    kernel = compiled(gemm_staged, config, "hip:gfx950")
    found = of_kernel(kernel)
    (loop,) = found.loops
    assert loop.flops == 2 * 128 * 256 * 64
    assert loop.cycles["matrix"] == 1024
    assert loop.unknown == 0
    assert loop.global_ == {"read": (128 + 256) * 64 * 2}
    assert loop.shared["written"] == (128 + 256) * 64 * 2
    assert found.warps == 8


def test_the_product_for_cdna_3_has_no_conflicts() -> None:
    kernel = compiled(gemm_staged, Config(128, 128, 64, 8, 2, 4), "hip:gfx942")
    (loop,) = of_kernel(kernel).loops
    assert loop.cycles["matrix"] == 1024
    assert (loop.unknown, loop.conflicts) == (0, 0)


def test_text_of_another_kind_is_refused() -> None:
    with pytest.raises(UnknownAssembly, match="neither AMDGCN nor PTX nor SASS"):
        read("define void @f() { ret void }")
    with pytest.raises(UnknownAssembly, match="rates of cuda:75"):
        read(PTX.format(address="", body="").replace("sm_90a", "sm_75"))


def test_the_command(remora_command, tmp_path) -> None:
    one = tmp_path / "one.ptx"
    two = tmp_path / "two.ptx"
    body = "st.shared.v4.b32 [%r3], {%r5,%r6,%r7,%r8};"
    one.write_text(PTX.format(address="shl.b32 %r2, %r1, 7;", body=body))
    two.write_text(PTX.format(address="shl.b32 %r2, %r1, 4;", body=body))
    shown = remora_command("bounds", str(one), str(two))
    assert shown.code == 0
    (conflicts,) = (line for line in shown.out.splitlines() if "bank conflicts" in line)
    assert "112" in conflicts
    plain = json.loads(remora_command("bounds", "--json", "--shared", "4096", str(one)).out)
    (loop,) = plain["one.ptx"]["loops"]
    assert loop["bound"] == "shared memory"
    assert loop["cycles_at_best"] == 128
    assert plain["one.ptx"]["shared"] == 4096
    missing = remora_command("bounds", str(tmp_path / "no.ptx"))
    assert missing.code == 1
    assert "there is no file" in missing.err
