// Loops that are not split: the output is the input.

// RUN: remora opt %s -p '%split{min_body=0}' | filecheck %s

module {
  // A step that may be zero or negative, and one that is.
  // CHECK-LABEL: @steps
  // CHECK-COUNT-2: scf.for
  // CHECK-NOT:     scf.for
  tt.func public @steps(%p: !tt.ptr<i32>, %n: i32, %b: i32, %step: i32) {
    %c0 = arith.constant 0 : i32
    %down = arith.constant -1 : i32
    scf.for %i = %c0 to %n step %step : i32 {
      %c = arith.cmpi slt, %i, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    scf.for %i = %c0 to %n step %down : i32 {
      %c = arith.cmpi slt, %i, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    tt.return
  }

  // A bound that changes in the loop, a product with the variable, an invariant
  // comparison, a comparison that nothing branches on.
  // CHECK-LABEL: @comparisons
  // CHECK-COUNT-4: scf.for
  // CHECK-NOT:     scf.for
  tt.func public @comparisons(%p: !tt.ptr<i32>, %n: i32, %b: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    scf.for %i = %c0 to %n step %c1 : i32 {
      %now = tt.load %p : !tt.ptr<i32>
      %c = arith.cmpi slt, %i, %now : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    scf.for %i = %c0 to %n step %c1 : i32 {
      %square = arith.muli %i, %i : i32
      %c = arith.cmpi slt, %square, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    scf.for %i = %c0 to %n step %c1 : i32 {
      %c = arith.cmpi slt, %n, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    scf.for %i = %c0 to %n step %c1 : i32 {
      %c = arith.cmpi slt, %i, %b : i32
      %x = arith.extui %c : i1 to i32
      tt.store %p, %x : !tt.ptr<i32>
    }
    tt.return
  }

  // Warp-specialised loops are Triton's to cut; 64 bits of unknown size could wrap.
  // CHECK-LABEL: @others
  // CHECK-COUNT-2: scf.for
  // CHECK-NOT:     scf.for
  tt.func public @others(%p: !tt.ptr<i64>, %q: !tt.ptr<i32>, %n: i64, %b: i64, %m: i32, %c: i32) {
    %c0 = arith.constant 0 : i64
    %c1 = arith.constant 1 : i64
    %d0 = arith.constant 0 : i32
    %d1 = arith.constant 1 : i32
    scf.for %i = %c0 to %n step %c1 : i64 {
      %below = arith.cmpi slt, %i, %b : i64
      scf.if %below {
        tt.store %p, %i : !tt.ptr<i64>
      }
    }
    scf.for %i = %d0 to %m step %d1 : i32 {
      %below = arith.cmpi slt, %i, %c : i32
      scf.if %below {
        tt.store %q, %i : !tt.ptr<i32>
      }
    } {tt.warp_specialize}
    tt.return
  }
}
