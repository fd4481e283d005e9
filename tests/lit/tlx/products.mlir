// Products live in the matrix unit's layout from the first to the last wait, around loops
// and branches; their operands' buffers are swizzled, and live until the products are done.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': None}:i64,i64,tensor<64x64xf32>,i1->tensor<64x64xf32>"(i64, i64, tensor<64x64xf32, #b>, i1) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': False}:tensor<64x64xf16>,i64,tensor<64x64xf32>->tensor<64x64xf32>"(tensor<64x64xf16, #b>, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 1}:tensor<64x64xf32>->tensor<64x64xf32>"(tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>

  tt.func public @loop(%n: i32, %zero: tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b> {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() : () -> i64
    %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> (tensor<64x64xf32, #b>) : i32 {
      %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
      %use = arith.cmpi sgt, %i, %c0 : i32
      %d = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': None}:i64,i64,tensor<64x64xf32>,i1->tensor<64x64xf32>"(%v, %v, %acc, %use) : (i64, i64, tensor<64x64xf32, #b>, i1) -> tensor<64x64xf32, #b>
      %w = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 1}:tensor<64x64xf32>->tensor<64x64xf32>"(%d) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
      scf.yield %w : tensor<64x64xf32, #b>
    }
    %done = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(%r) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    tt.return %done : tensor<64x64xf32, #b>
  }

  tt.func public @registers(%x: tensor<64x64xf16, #b>, %zero: tensor<64x64xf32, #b>, %which: i1) -> tensor<64x64xf32, #b> {
    %c0 = arith.constant 0 : i32
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %c0) : (i64, i32) -> i64
    %r = scf.if %which -> tensor<64x64xf32, #b> {
      %d = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': False}:tensor<64x64xf16>,i64,tensor<64x64xf32>->tensor<64x64xf32>"(%x, %v, %zero) : (tensor<64x64xf16, #b>, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
      scf.yield %d : tensor<64x64xf32, #b>
    } else {
      %d = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(%v, %v, %zero) : (i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
      scf.yield %d : tensor<64x64xf32, #b>
    }
    %done = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(%r) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    tt.return %done : tensor<64x64xf32, #b>
  }

  tt.func public @early_return(%zero: tensor<64x64xf32, #b>, %out: tensor<64x64x!tt.ptr<f32>, #b>, %which: i1) {
    %c0 = arith.constant 0 : i32
    cf.cond_br %which, ^more, ^last(%zero : tensor<64x64xf32, #b>)
  ^more:
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %c0) : (i64, i32) -> i64
    %d = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(%v, %v, %zero) : (i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    %w = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(%d) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    cf.br ^last(%w : tensor<64x64xf32, #b>)
  ^last(%acc: tensor<64x64xf32, #b>):
    tt.store %out, %acc : tensor<64x64x!tt.ptr<f32>, #b>
    tt.return
  }
}

// CHECK-NOT:   remora:
// CHECK:       #mma = #ttg.nvidia_mma<{{.*}}instrShape = [16, 64, 16]}>
// CHECK:       #shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>

// CHECK:       tt.func public @loop
// CHECK:         %[[A:.*]] = ttg.local_alloc
// CHECK-NEXT:    %[[Z:.*]] = ttg.convert_layout %arg1
// CHECK-NEXT:    %[[R:.*]] = scf.for {{.*}} iter_args(%[[ACC:.*]] = %[[Z]]) -> (tensor<64x64xf32, #mma>)
// CHECK-NOT:       convert_layout
// CHECK:           %[[USE:.*]] = arith.cmpi
// CHECK:           %[[D:.*]] = ttng.warp_group_dot %[[V:.*]], %[[V]], %[[ACC]], %[[USE]] {inputPrecision = 0 : i32, isAsync = true}
// CHECK-NEXT:      %[[W:.*]] = ttng.warp_group_dot_wait %[[D]] {pendings = 1 : i32}
// CHECK-NEXT:      scf.yield %[[W]]
// CHECK-NEXT:    } {tt.num_stages = 0 : i32}
// CHECK-NEXT:    %[[DONE:.*]] = ttng.warp_group_dot_wait %[[R]] {pendings = 0 : i32}
// CHECK-NEXT:    ttg.local_dealloc %[[A]]
// CHECK-NEXT:    ttg.convert_layout %[[DONE]]

// CHECK:       tt.func public @registers
// CHECK:         scf.if %arg2 -> (tensor<64x64xf32, #mma>) {
// CHECK:           %[[X:.*]] = ttg.convert_layout %arg0 : {{.*}} -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>>
// CHECK:           %[[NO:.*]] = arith.constant false
// CHECK-NEXT:      ttng.warp_group_dot %[[X]], %{{.*}}, %{{.*}}, %[[NO]]
// CHECK:         } else {
// CHECK:           %[[YES:.*]] = arith.constant true
// CHECK-NEXT:      ttng.warp_group_dot %{{.*}}, %{{.*}}, %{{.*}}, %[[YES]]

// CHECK:       tt.func public @early_return
// CHECK:         cf.cond_br %arg2, ^bb1, ^bb2(%{{.*}} : tensor<64x64xf32, #mma>)
// CHECK:         cf.br ^bb2(%{{.*}} : tensor<64x64xf32, #mma>)
// CHECK-NEXT:  ^bb2(%[[ACC:.*]]: tensor<64x64xf32, #mma>):
// CHECK-NEXT:    ttg.convert_layout %[[ACC]]
// CHECK-NOT:   remora:
