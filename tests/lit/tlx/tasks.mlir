// Tasks are cut out as functions that are called in the order of the set, the default task
// first; scalars and handles are captured, constants and tensors computed again.

// RUN: remora opt %s -p remora.tlx.lower.outline:OutlineTasks | filecheck %s

tt.func private @"remora:tlx.async_tasks@remora.tlx.tasks::{'copy': 0, 'edge': 'begin'}:->"()
tt.func private @"remora:tlx.async_tasks@remora.tlx.tasks::{'copy': 0, 'edge': 'end'}:->"()
tt.func private @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 0, 'default': True, 'edge': 'begin', 'num_regs': None, 'num_warps': None}:->"()
tt.func private @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 0, 'default': True, 'edge': 'end', 'num_regs': None, 'num_warps': None}:->"()
tt.func private @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 1, 'default': False, 'edge': 'begin', 'num_regs': 40, 'num_warps': 2}:->"()
tt.func private @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 1, 'default': False, 'edge': 'end', 'num_regs': 40, 'num_warps': 2}:->"()
tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (64,)}:->i64"() -> i64
tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64

tt.func public @kernel(%p: !tt.ptr<f32>, %n: i32) {
  %c1 = arith.constant 1 : i32
  %more = arith.addi %n, %c1 : i32
  %at = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
  %buffers = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (64,)}:->i64"() : () -> i64
  tt.call @"remora:tlx.async_tasks@remora.tlx.tasks::{'copy': 0, 'edge': 'begin'}:->"() : () -> ()
  tt.call @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 1, 'default': False, 'edge': 'begin', 'num_regs': 40, 'num_warps': 2}:->"() : () -> ()
  %view = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%buffers, %more) : (i64, i32) -> i64
  tt.call @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 1, 'default': False, 'edge': 'end', 'num_regs': 40, 'num_warps': 2}:->"() : () -> ()
  tt.call @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 0, 'default': True, 'edge': 'begin', 'num_regs': None, 'num_warps': None}:->"() : () -> ()
  %pointers = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
  %places = tt.addptr %pointers, %at : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
  %x = tt.load %places : tensor<64x!tt.ptr<f32>>
  tt.store %places, %x : tensor<64x!tt.ptr<f32>>
  tt.call @"remora:tlx.async_task@remora.tlx.tasks::{'copy': 0, 'default': True, 'edge': 'end', 'num_regs': None, 'num_warps': None}:->"() : () -> ()
  tt.call @"remora:tlx.async_tasks@remora.tlx.tasks::{'copy': 0, 'edge': 'end'}:->"() : () -> ()
  tt.return
}

// CHECK:         tt.func public @kernel(%arg0: !tt.ptr<f32>, %arg1: i32) {
// CHECK-NEXT:      %c1_i32 = arith.constant 1 : i32
// CHECK-NEXT:      %0 = arith.addi %arg1, %c1_i32 : i32
// CHECK-NEXT:      %1 = tt.make_range
// CHECK-NEXT:      %2 = tt.call @"remora:tlx.local_alloc
// CHECK-NEXT:      tt.call @tlx.task.0(%arg0) : (!tt.ptr<f32>) -> ()
// CHECK-NEXT:      tt.call @tlx.task.1(%2, %0) : (i64, i32) -> ()
// CHECK-NEXT:      tt.return
// CHECK:         tt.func private @tlx.task.0(%arg0: !tt.ptr<f32>) attributes {noinline = true, tlx.default, tlx.task = array<i32: 0, 2, 0, 0, 0>} {
// CHECK-NEXT:      %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
// CHECK-NEXT:      %1 = tt.splat %arg0
// CHECK-NEXT:      %2 = tt.addptr %1, %0
// CHECK-NEXT:      %3 = tt.load %2
// CHECK-NEXT:      tt.store %2, %3
// CHECK-NEXT:      tt.return
// CHECK:         tt.func private @tlx.task.1(%arg0: i64, %arg1: i32) attributes {noinline = true, tlx.task = array<i32: 1, 2, 1, 2, 40>} {
// CHECK-NEXT:      %0 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%arg0, %arg1)
// CHECK-NEXT:      tt.return
