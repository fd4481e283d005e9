// The calls of a set of tasks become one ttg.warp_specialize. A task with other warps than
// the program's has the layouts of its own; each partition takes every capture.

// RUN: remora opt %s -p remora.tlx.lower.specialize:SpecializeWarps | filecheck %s

#four = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.async_task_replica_id@remora.tlx.tasks:v:{}:->i32"() -> i32
  tt.func public @kernel(%p: !tt.ptr<f32>, %q: !tt.ptr<i32>, %n: i32) {
    scf.for %i = %n to %n step %n : i32 {
      tt.call @tlx.task.0(%p, %i) : (!tt.ptr<f32>, i32) -> ()
      tt.call @tlx.task.1(%p) : (!tt.ptr<f32>) -> ()
      tt.call @tlx.task.2(%q, %i) : (!tt.ptr<i32>, i32) -> ()
    }
    tt.return
  }
  tt.func private @tlx.task.0(%p: !tt.ptr<f32>, %i: i32) attributes {noinline = true, tlx.default, tlx.task = array<i32: 0, 3, 0, 0, 0>} {
    %q = tt.addptr %p, %i : !tt.ptr<f32>, i32
    %x = tt.load %q : !tt.ptr<f32>
    tt.store %p, %x : !tt.ptr<f32>
    tt.return
  }
  tt.func private @tlx.task.1(%p: !tt.ptr<f32>) attributes {noinline = true, tlx.task = array<i32: 1, 3, 0, 1, 64>} {
    %at = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #four>
    %pointers = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>, #four>
    %places = tt.addptr %pointers, %at : tensor<64x!tt.ptr<f32>, #four>, tensor<64xi32, #four>
    %x = tt.load %places : tensor<64x!tt.ptr<f32>, #four>
    tt.store %places, %x : tensor<64x!tt.ptr<f32>, #four>
    tt.return
  }
  tt.func private @tlx.task.2(%q: !tt.ptr<i32>, %i: i32) attributes {noinline = true, tlx.task = array<i32: 2, 3, 1, 4, 0>} {
    %copy = tt.call @"remora:tlx.async_task_replica_id@remora.tlx.tasks:v:{}:->i32"() : () -> i32
    %value = arith.addi %copy, %i : i32
    tt.store %q, %value : !tt.ptr<i32>
    tt.return
  }
}

// CHECK:       [[ONE:#.*]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>
// CHECK:         tt.func public @kernel(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<i32>, %arg2: i32) {
// CHECK-NEXT:      scf.for %arg3 = %arg2 to %arg2 step %arg2  : i32 {
// CHECK-NEXT:        ttg.warp_specialize(%arg0, %arg1, %arg3) attributes {requestedRegisters = array<i32: 64, 240>}
// CHECK-NEXT:        default {
// CHECK-NEXT:          %0 = tt.addptr %arg0, %arg3
// CHECK:               ttg.warp_yield
// CHECK:             partition0(%arg4: !tt.ptr<f32>, %arg5: !tt.ptr<i32>, %arg6: i32) num_warps(1) {
// CHECK-NEXT:          %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, [[ONE]]>
// CHECK:               ttg.warp_return
// CHECK:             partition1(%arg4: !tt.ptr<f32>, %arg5: !tt.ptr<i32>, %arg6: i32) num_warps(4) {
// CHECK-NEXT:          %c1_i32 = arith.constant 1 : i32
// CHECK-NEXT:          %0 = arith.addi %c1_i32, %arg6 : i32
// CHECK-NEXT:          tt.store %arg5, %0
// CHECK-NEXT:          ttg.warp_return
// CHECK-NOT:     @tlx.task
