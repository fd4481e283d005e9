// A branch on a comparison of the induction variable: constant in both loops.

// RUN: remora opt %s -p '%split{min_body=0}' | filecheck %s
// RUN: remora opt %s -p '%split{min_body=0 max_splits=2}' | filecheck %s --check-prefix TWICE
// RUN: remora opt %s -p '%split{min_body=0 max_splits=0}' | filecheck %s --check-prefix NEVER
// RUN: remora opt %s -p '%split{min_body=100}' | filecheck %s --check-prefix NEVER
// RUN: remora opt %s -p '%split{min_body=0}' --generic --locations | filecheck %s --check-prefix LOC

module {
  // CHECK-LABEL: @branch
  tt.func public @branch(%p: !tt.ptr<i32>, %n: i32, %b: i32) {
    %c0 = arith.constant 0 : i32
    %c4 = arith.constant 4 : i32
    // CHECK:      [[N:%.*]] = arith.extsi %arg1 : i32 to i64
    // CHECK:      [[B:%.*]] = arith.extsi %arg2 : i32 to i64
    // CHECK:      [[LEAST:%.*]] = arith.minsi [[N]], [[B]] : i64
    // CHECK:      [[END:%.*]] = arith.maxsi [[LEAST]], %c0_i64 : i64
    // CHECK-NEXT: [[END32:%.*]] = arith.trunci [[END]] : i64 to i32
    // CHECK:      [[UP:%.*]] = arith.addi [[END]], %c3_i64 : i64
    // CHECK:      [[COUNT:%.*]] = arith.shrsi [[UP]], %c2_i64 : i64
    // CHECK:      [[START:%.*]] = arith.muli [[COUNT]], %c4_i64 : i64
    // CHECK:      [[START32:%.*]] = arith.trunci [[START]] : i64 to i32
    // CHECK-NEXT: [[LAST:%.*]] = arith.select {{%.*}}, %arg1, [[START32]] : i32
    // CHECK-NEXT: scf.for [[I:%.*]] = %c0_i32 to [[END32]] step %c4_i32
    // CHECK-NEXT:   [[TRUE:%.*]] = arith.constant true
    // CHECK-NEXT:   scf.if [[TRUE]] {
    // CHECK:      } {tt.num_stages = 3 : i32}
    // CHECK-NEXT: scf.for [[I:%.*]] = [[START32]] to [[LAST]] step %c4_i32
    // CHECK-NEXT:   [[FALSE:%.*]] = arith.constant false
    // CHECK-NEXT:   scf.if [[FALSE]] {
    // CHECK:      } {tt.num_stages = 3 : i32}
    // CHECK-NEXT: tt.return
    // LOC: }) : (i1) -> () loc("{{.*}}scalar.mlir":39:7)
    // LOC: }) {tt.num_stages = 3 : i32} : {{.*}} loc("{{.*}}scalar.mlir":37:5)
    // LOC: }) : (i1) -> () loc("{{.*}}scalar.mlir":39:7)
    // LOC: }) {tt.num_stages = 3 : i32} : {{.*}} loc("{{.*}}scalar.mlir":37:5)
    scf.for %i = %c0 to %n step %c4 : i32 {
      %c = arith.cmpi slt, %i, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      } else {
        tt.store %p, %n : !tt.ptr<i32>
      }
    } {tt.num_stages = 3 : i32}
    tt.return
  }

  // Values go through both loops.
  // CHECK-LABEL: @carried
  tt.func public @carried(%n: i32, %b: i32) -> i32 {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    // CHECK:      [[FIRST:%.*]] = scf.for [[I:%.*]] = %c0_i32 to [[END:%.*]] step %c1_i32 iter_args([[X:%.*]] = %c0_i32) -> (i32)
    // CHECK:        arith.constant false
    // CHECK:      [[SECOND:%.*]] = scf.for [[I:%.*]] = [[END]] to %arg0 step %c1_i32 iter_args([[X:%.*]] = [[FIRST]]) -> (i32)
    // CHECK:        arith.constant true
    // CHECK:      tt.return [[SECOND]] : i32
    %r = scf.for %i = %c0 to %n step %c1 iter_args(%x = %c0) -> (i32) : i32 {
      %c = arith.cmpi sle, %b, %i : i32
      %d = arith.select %c, %i, %c1 : i32
      %y = arith.addi %x, %d : i32
      scf.yield %y : i32
    }
    tt.return %r : i32
  }

  // The first, the last, and any iteration; the last takes two splits.
  // CHECK-LABEL: @equal
  // TWICE-LABEL: @equal
  // NEVER-LABEL: @equal
  // NEVER-COUNT-3: scf.for
  // NEVER-NOT: scf.for
  tt.func public @equal(%p: !tt.ptr<i32>, %n: i32, %b: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %last = arith.subi %n, %c1 : i32
    // CHECK:      scf.for [[I:%.*]] = %c0_i32 to [[END:%.*]] step
    // CHECK:        arith.constant true
    // CHECK:      scf.for [[I:%.*]] = [[END]] to %arg1 step
    // CHECK:        arith.constant false
    scf.for %i = %c0 to %n step %c1 : i32 {
      %c = arith.cmpi eq, %i, %c0 : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    // CHECK:      scf.for [[I:%.*]] = %c0_i32 to [[END:%.*]] step
    // CHECK:        arith.constant false
    // CHECK:      scf.for [[I:%.*]] = [[END]] to %arg1 step
    // CHECK:        arith.constant true
    scf.for %i = %c0 to %n step %c1 : i32 {
      %c = arith.cmpi eq, %i, %last : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    // CHECK:      scf.for
    // CHECK:        arith.cmpi ne
    // CHECK-NOT:  scf.for
    // CHECK:      tt.return
    // TWICE-COUNT-4: scf.for
    // TWICE:      scf.for [[I:%.*]] = %c0_i32 to [[FROM:%.*]] step
    // TWICE:        arith.constant true
    // TWICE:      scf.for [[I:%.*]] = [[FROM]] to [[TO:%.*]] step
    // TWICE:        arith.constant false
    // TWICE:      scf.for [[I:%.*]] = [[TO]] to %arg1 step
    // TWICE:        arith.constant true
    scf.for %i = %c0 to %n step %c1 : i32 {
      %c = arith.cmpi ne, %i, %b : i32
      scf.if %c {
        tt.store %p, %i : !tt.ptr<i32>
      }
    }
    tt.return
  }
}
