"""Modules between libtriton and text."""

from __future__ import annotations

import os

import pytest
from compiling import TARGETS, compile_kernel, context_for, parse
from hypothesis import given
from hypothesis import strategies as st

from remora import host
from remora.errors import BridgeError, IRParseError

GOOD = """module {
  tt.func public @kernel(%x: i32) {
    %0 = arith.addi %x, %x : i32
    tt.return
  }
}
"""


def test_generic_text_comes_back():
    module = parse(GOOD)
    text = host.generic_text(module)
    assert '"arith.addi"' in text
    assert "loc(" in text
    assert "loc(" not in host.generic_text(module, locations=False)
    again = parse(text)
    assert host.generic_text(again) == text
    assert str(again) == str(module)


@pytest.mark.parametrize("target", TARGETS)
def test_generic_text_of_compiled_stages(target):
    compiled = compile_kernel(target)
    for stage in ("ttir", "ttgir"):
        module = parse(compiled.asm[stage], target)
        text = host.generic_text(module)
        assert "#blocked" not in text  # in full, not through aliases
        assert host.generic_text(parse(text, target)) == text


def test_a_module_with_a_private_function_only():
    module = parse("module {\n tt.func private @f(i32)\n}\n")
    assert '"tt.func"' in host.generic_text(module)


def test_an_empty_module_is_refused():
    with pytest.raises(BridgeError, match="holds no function"):
        host.generic_text(parse("module {\n}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("%x, %x", "%x, %y"), "line 3, column 25: use of undeclared SSA value name"),
        (GOOD.replace("    tt.return\n", ""), "block with no terminator"),
        (GOOD.replace("%x : i32", "%x : i64"), "expects different type"),
        (GOOD[:-4], "expected operation name"),
        ("this is no module", "line 1, column 1"),
    ],
)
def test_diagnostics_are_in_the_error(text, message, capfd):
    context = context_for("cuda:90")
    with pytest.raises(IRParseError) as caught:
        host.parse_text(text, context)
    assert message in caught.value.what
    # Standard error is where it was, and the context still works.
    capfd.readouterr()
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"
    assert host.parse_text(GOOD, context).has_function("kernel")


def test_diagnostics_name_the_kernel_s_line():
    text = GOOD.replace("    tt.return\n", "").replace(": i32\n", ': i32 loc("mine.py":12:5)\n', 1)
    with pytest.raises(IRParseError, match=r"mine\.py:12:5: block with no terminator"):
        parse(text)


def test_no_file_descriptor_is_left_open():
    context = context_for("cuda:90")

    def round_trip():
        host.generic_text(host.parse_text(GOOD, context))
        with pytest.raises(IRParseError):
            host.parse_text("nothing", context)

    round_trip()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        round_trip()
    assert len(os.listdir("/proc/self/fd")) == before


def test_captured_stderr_gives_the_text_and_the_descriptor_back(capfd):
    with host.captured_stderr() as output:
        os.write(2, b"inside")
    os.write(2, b"outside")
    assert output == ["inside"]
    assert capfd.readouterr().err == "outside"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_any_text_in_a_string_attribute_comes_back(value):
    escaped = "".join(f"\\{byte:02X}" for byte in value.encode())
    text = GOOD.replace("%x, %x :", f'%x, %x {{note = "{escaped}"}} :')
    module = parse(text)
    generic = host.generic_text(module)
    assert host.generic_text(parse(generic)) == generic
