"""Values of every kind come back as MLIR printed them: properties over generated modules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from compiling import context_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, FloatAttr, StringAttr

from remora import host, ir
from remora.errors import IRParseError

settings.register_profile(
    "remora", max_examples=80, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("remora")

# Name and bits.
FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f8E5M2": 8, "f8E4M3FN": 8, "f8E4M3FNUZ": 8}
WIDTHS = [1, 8, 16, 32, 64, 128]


@cache
def _context() -> Any:
    return context_for("cuda:90")


def printed(attributes: Sequence[str] = (), location: str = "unknown") -> str:
    """A module that holds the attributes, as MLIR prints it."""
    entries = ", ".join(f"a{i:02} = {a}" for i, a in enumerate(attributes))
    text = f"""
    "builtin.module"() ({{
      "tt.func"() <{{function_type = (i32) -> (), sym_name = "f"}}> ({{
      ^bb0(%arg0: i32 loc({location})):
        %0 = "arith.constant"() <{{value = 1 : i32}}> {{{entries}}} : () -> i32 loc({location})
        "tt.return"() : () -> () loc(unknown)
      }}) : () -> () loc(unknown)
    }}) : () -> () loc(unknown)"""
    return host.generic_text(host.parse_text(text, _context()))


def attributes_of(module: Any) -> list[Any]:
    """The attributes given to ``printed``, as a pass sees them."""
    constant = next(op for op in module.walk() if "a00" in op.attributes)
    return [v for k, v in constant.attributes.items() if k != "op_name__"]


def exact(text: str) -> Any:
    """Read a module, check that it is written as it was, and return it."""
    module = ir.read(text)
    assert ir.write(module) == text
    return module


@st.composite
def float_bits(draw: st.DrawFn) -> tuple[str, int]:
    kind = draw(st.sampled_from(sorted(FLOATS)))
    width = FLOATS[kind]
    special = st.sampled_from([0, 1, 1 << (width - 1), (1 << width) - 1, (1 << (width - 1)) - 1])
    return kind, draw(special | st.integers(0, (1 << width) - 1))


@given(st.lists(float_bits(), min_size=1, max_size=8))
def test_scalar_floats(values: list[tuple[str, int]]) -> None:
    text = printed([f"0x{bits:X} : {kind}" for kind, bits in values])
    for (_, bits), attribute in zip(values, attributes_of(exact(text)), strict=True):
        if isinstance(attribute, FloatAttr):
            packed = attribute.type.pack([attribute.value.data])
            assert int.from_bytes(packed, "little") == bits


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_decimal_floats(value: float) -> None:
    (attribute,) = attributes_of(exact(printed([f"{value:.20e} : f32"])))
    assert isinstance(attribute, FloatAttr)
    assert attribute.value.data == value


@st.composite
def dense_floats(draw: st.DrawFn) -> tuple[str, list[int], str]:
    kind, first = draw(float_bits())
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    element = st.just(first) | st.integers(0, (1 << FLOATS[kind]) - 1)
    bits = draw(st.lists(element, min_size=rows * columns, max_size=rows * columns))
    inner = [", ".join(f"0x{b:X}" for b in bits[i * columns :][:columns]) for i in range(rows)]
    literal = ", ".join(f"[{row}]" for row in inner)
    return kind, bits, f"dense<[{literal}]> : tensor<{rows}x{columns}x{kind}>"


@given(dense_floats())
def test_dense_floats(dense: tuple[str, list[int], str]) -> None:
    kind, bits, literal = dense
    (attribute,) = attributes_of(exact(printed([literal])))
    assert isinstance(attribute, DenseIntOrFPElementsAttr)
    size = FLOATS[kind] // 8
    data = attribute.data.data
    assert [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)] == bits


@pytest.mark.parametrize("kind", sorted(FLOATS))
@given(data=st.data())
def test_splats(kind: str, data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, (1 << FLOATS[kind]) - 1))
    (attribute,) = attributes_of(exact(printed([f"dense<0x{bits:X}> : tensor<256x64x{kind}>"])))
    assert isinstance(attribute, DenseIntOrFPElementsAttr)
    assert isinstance(attribute.get_element_type(), AnyFloat)
    assert attribute.data.data == bits.to_bytes(FLOATS[kind] // 8, "little") * 256 * 64


@given(st.lists(st.sampled_from(WIDTHS).flatmap(
    lambda w: st.tuples(st.just(w), st.integers(-(1 << (w - 1)), (1 << (w - 1)) - 1))
), min_size=1, max_size=6))  # fmt: skip
def test_integers(values: list[tuple[int, int]]) -> None:
    literals = []
    for width, value in values:
        word = str(bool(value)).lower() if width == 1 else str(value)
        literals.append(word if width == 1 else f"{word} : i{width}")
        literals.append(f"dense<{word}> : tensor<32xi{width}>")
        if width <= 64:
            literals.append(f"array<i{width}: {word}, {word}>")
            literals.append(f"dense<[{word}, {'true' if width == 1 else 1}]> : vector<2xi{width}>")
    exact(printed(literals))


def quoted(data: bytes) -> str:
    """A string literal of any bytes."""
    return '"' + "".join(f"\\{byte:02X}" for byte in data) + '"'


@given(st.lists(st.binary(max_size=12) | st.text(max_size=12).map(str.encode), min_size=1))
def test_strings(values: list[bytes]) -> None:
    module = exact(printed([quoted(v) for v in values]))
    for value, attribute in zip(values, attributes_of(module), strict=True):
        if isinstance(attribute, StringAttr):
            assert attribute.data.encode() == value


@given(st.text(min_size=1, max_size=12).filter(lambda s: "\0" not in s))
def test_symbols(name: str) -> None:
    symbol = quoted(name.encode())
    other = "c" if name == "b" else "b"  # a dictionary has each key once
    exact(printed([f"@{symbol}", f"@a::@{symbol}", "{" + symbol + f" = 1 : i8, {other}" + "}"]))


names = st.sampled_from(["a.py", "/tmp/x y/b.py", "é.py", 'q"q', "back\\slash", " loc(", "// c"])
names = names | st.text(max_size=6)
positions = st.integers(0, 1 << 20)


def inner_locations(child: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    named = st.tuples(names, child).map(lambda t: f"{quoted(t[0].encode())}({t[1]})")
    call = st.tuples(child, child).map(lambda t: f"callsite({t[0]} at {t[1]})")
    fused = st.lists(child, min_size=2, max_size=3).map(lambda t: f"fused[{', '.join(t)}]")
    tagged = st.tuples(child, child).map(lambda t: f'fused<{{a = "b, ]"}}>[{t[0]}, {t[1]}]')
    return named | call | fused | tagged


locations = st.recursive(
    st.just("unknown")
    | st.tuples(names, positions, positions).map(lambda t: f"{quoted(t[0].encode())}:{t[1]}:{t[2]}")
    | st.tuples(names, positions).map(lambda t: f"{quoted(t[0].encode())}:{t[1]}:1 to :9"),
    inner_locations,
    max_leaves=5,
)


@given(locations)
def test_locations(location: str) -> None:
    exact(printed(location=location))


OTHERS = [
    "affine_map<(d0, d1)[s0] -> (d0 + s0, d1 floordiv 2, (d0 mod 3) * 4)>",
    "affine_set<(d0) : (d0 - 10 >= 0, d0 == 0)>",
    "[1 : i8, [], {}, unit, @a::@b, i32, (i32) -> (), () -> (i32, f32)]",
    "dense<[]> : tensor<0xi32>",
    "dense<1.0> : tensor<f32>",
    "dense<(1.0, 0x7FC00000)> : tensor<2xcomplex<f32>>",
    "dense<[true, false, true]> : tensor<3xi1>",
    f"dense<[{', '.join(map(str, range(128)))}]> : tensor<128xi16>",
    f"dense<[{', '.join(f'{i}.5' for i in range(128))}]> : tensor<128xbf16>",
    "sparse<[[0, 1]], [5]> : tensor<2x2xi32>",
    "array<i8>",
    "array<f32: 1.0, 0x7F800000, 1.17549435E-38>",
    "array<i1: true, false>",
    "tensor<4x?xf32>",
    "tensor<*xi8>",
    "vector<[4]x2xf32>",
    "memref<4x4xf32, strided<[?, 1], offset: 3>, 3>",
    "tuple<i32, tensor<2xi1>>",
    "si8",
    "5 : index",
    "-170141183460469231731687303715884105728 : i128",
    "!tt.ptr<f32>",
    "!ttg.memdesc<2x64x32xf16, #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 4, "
    "order = [1, 0]}>, #ttg.shared_memory, mutable>",
    "tensor<32xi32, #ttg.slice<{dim = 0, parent = #ttg.slice<{dim = 2, parent = #ttg.blocked<{"
    "sizePerThread = [1, 1, 1], threadsPerWarp = [1, 1, 32], warpsPerCTA = [1, 1, 4], "
    "order = [2, 1, 0]}>}>}>>",
    "!llvm.ptr<3>",
    "!llvm.struct<(i32, ptr, array<4 x f32>)>",
    "#llvm.linkage<external>",
    "#arith.fastmath<nnan,contract>",
    "f80",
    "1.5 : f80",
    "1.0 : f128",
    "1.0 : tf32",
]


@pytest.mark.parametrize("literal", OTHERS)
def test_other_attributes(literal: str) -> None:
    exact(printed([literal, f"[{literal}, 1 : i8]", f"{{x = {literal}}}"]))


@pytest.mark.parametrize(
    ("spelled", "value"),
    [("1.0 : f32", 1.0), ("5", 5), ("0x10 : i32", 16), ("2.5", 2.5), ("-0.5:f32", -0.5)],
)
def test_other_spellings_are_values_too(spelled: str, value: float) -> None:
    text = f'"builtin.module"() ({{\n  "a.b"() {{a00 = {spelled}}} : () -> ()\n}}) : () -> ()'
    (attribute,) = attributes_of(ir.read(text))
    assert attribute.value.data == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('"a.b"() {x = [1, 2} : () -> ()', "']' expected"),
        ('"a.b"(%9) : (i32) -> ()', "used but not defined"),
        ('"a.b"() : (i32) -> ()', "expected 1 operand types but had 0"),
        ('%0:2 = "a.b"() : () -> i32', "has 1 results"),
        ('"a.b"() : () -> (i32', "'\\)' expected"),
        ('"a.b"()[^bb7] : () -> ()', "missing block"),
        ('%0 = "a.b"() : () -> i32\n"a.c"(%0) : (f32) -> ()', "operand is used with type"),
    ],
)
def test_what_is_not_a_module_is_an_error(body: str, message: str) -> None:
    with pytest.raises(IRParseError, match=message):
        ir.read(f'"builtin.module"() ({{\n{body}\n}}) : () -> ()')


def test_text_not_laid_out_as_mlir_prints_it() -> None:
    text = """
    // A comment with loc(unknown)
    "builtin.module"() ({ "a.b"() : () -> () "a.c"() ({
        ^bb0(%x : i32 ,  %y: f32):  // here
          "a.d"(%x,%z) [^bb1] {"x" = dense<0xFF800000> : tensor<2xf32>} // there
             : (i32, f32) -> ()
        ^bb1: %z = "a.e"(%y) : (f32) -> (f32) loc("f.py":1:2)
      }) {u} : () -> () }) : () -> ()"""
    assert (
        ir.write(ir.read(text), locations=False)
        == """"builtin.module"() ({
  "a.b"() : () -> ()
  "a.c"() ({
  ^bb0(%arg0: i32, %arg1: f32):
    "a.d"(%arg0, %0)[^bb1] {x = dense<0xFF800000> : tensor<2xf32>} : (i32, f32) -> ()
  ^bb1:  // pred: ^bb0
    %0 = "a.e"(%arg1) : (f32) -> f32
  }) {u} : () -> ()
}) : () -> ()"""
    )
