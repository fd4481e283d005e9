"""The order of uses is told from MLIR's print with users, and restored after changes."""

from __future__ import annotations

from typing import Any

from remora import ir

BEFORE = """"builtin.module"() ({
  "a.f"() ({
  ^bb0(%arg0: i32, %arg1: i32):
    // %arg0 is used by %4, %5
    // %arg1 is unused
    %1:2 = "a.x"(%arg0, %arg0) : (i32, i32) -> (i32, i32) // users: (%3, %2), (unused)
    %2 = "a.y"(%1#0) : (i32) -> i32 // user: %4
    %3 = "a.y"(%1#0) : (i32) -> i32 // unused
    "a.z"(%2, %arg0) ({
    ^bb0(%arg2: i32):
      // %arg2 is used by %5
      "a.w"(%arg2, %arg0) : (i32, i32) -> () // id: %5
    }) : (i32, i32) -> () // id: %4
  ^bb1(%6: i32):
    // %6 is unused
    "a.r"() : () -> ()
  }) : () -> ()
}) : () -> ()"""


def module_and_order(text: str) -> tuple[Any, Any]:
    plain = "\n".join(
        line.partition(" // ")[0] for line in text.splitlines() if " is u" not in line
    )
    module = ir.read(plain)
    return module, ir.UseOrder(ir.Contents(module), text)


def swapped(text: str) -> str:
    return text.replace("(%3, %2)", "(%2, %3)").replace("by %4, %5", "by %5, %1#0, %1#1, %4")


def test_users_are_read() -> None:
    module, order = module_and_order(BEFORE)
    users = {v: [op.op_name.data for op in ops] for v, ops in order.users.items() if ops}
    function = module.body.block.first_op
    entry, second = function.regions[0].blocks
    assert users[entry.args[0]] == ["a.z", "a.w"]
    assert users[entry.first_op.results[0]] == ["a.y", "a.y"]
    assert entry.args[1] not in users
    assert second.args[0] not in users


def test_new_places() -> None:
    module, old = module_and_order(BEFORE)
    new = ir.UseOrder(ir.Contents(module), swapped(BEFORE))
    entry = module.body.block.first_op.regions[0].blocks[0]
    places = dict(new.sorted_as(old))
    assert places[entry.first_op.results[0]] == [1, 0]
    # Now a.w, a.x twice, a.z; the uses by a.x are new and come first.
    assert places[entry.args[0]] == [3, 0, 1, 2]
    assert not list(old.sorted_as(old))


def test_uses_are_restored() -> None:
    module, old = module_and_order(BEFORE)
    new = ir.UseOrder(ir.Contents(module), swapped(BEFORE))
    shuffled = []

    class Native:
        """As libtriton's module, its operations in MLIR's order of walking."""

        def __init__(self, name: str = "") -> None:
            self.name = name

        def walk(self, visit: Any) -> None:
            for name in ("x", "y0", "y1", "w", "z", "r", "f", "module"):
                visit(Native(name))

        def get_result(self, index: int) -> str:
            return f"{self.name}#{index}"

        def get_block(self) -> Native:
            return self

        def get_argument(self, index: int) -> str:
            return f"block of {self.name}, {index}"

    ir.restore_uses(module, Native(), old, new, lambda v, p: shuffled.append((v, p)))
    assert sorted(shuffled) == [("block of x, 0", [3, 0, 1, 2]), ("x#0", [1, 0])]
