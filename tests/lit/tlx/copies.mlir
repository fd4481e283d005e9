// Copies: by the copy engine where it can, else through registers; waits as they are written.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s
// RUN: sed 's/cuda:90/hip:gfx90a/' %s > %t.mlir
// RUN: remora opt %t.mlir -p remora.dsl.lowering:LowerOperations | filecheck %s --check-prefix AMD

#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#one = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (512,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': False}:tensor<512xf16>,i64->i64"(tensor<512xf16, #b>, i64) -> i64
  tt.func private @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': True}:tensor<512xf16>,i64->i64"(tensor<512xf16, #one>, i64) -> i64
  tt.func private @"remora:tlx.async_load_commit_group@remora.tlx.copies:h:{}:->i64"() -> i64
  tt.func private @"remora:tlx.async_load_wait_group@remora.tlx.copies:h:{'pendings': 3}:->i64"() -> i64
  tt.func private @"remora:tlx.async_load_wait_group@remora.tlx.copies:h:{'pendings': 0}:->i64"() -> i64

  tt.func public @engine(%base: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %n: i32 {tt.divisibility = 16 : i32}, %i: i32) {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (512,)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    %r = tt.make_range {start = 0 : i32, end = 512 : i32} : tensor<512xi32, #b>
    %s = tt.splat %base : !tt.ptr<f16> -> tensor<512x!tt.ptr<f16>, #b>
    %p = tt.addptr %s, %r : tensor<512x!tt.ptr<f16>, #b>, tensor<512xi32, #b>
    %ns = tt.splat %n : i32 -> tensor<512xi32, #b>
    %m = arith.cmpi slt, %r, %ns : tensor<512xi32, #b>
    %zero = arith.constant dense<0.0> : tensor<512xf16, #b>
    %minus = arith.constant dense<-0.0> : tensor<512xf16, #b>
    %x = tt.load %p {isVolatile = true} : tensor<512x!tt.ptr<f16>, #b>
    %t0 = tt.call @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': False}:tensor<512xf16>,i64->i64"(%x, %v) : (tensor<512xf16, #b>, i64) -> i64
    %y = tt.load %p, %m, %zero {isVolatile = true} : tensor<512x!tt.ptr<f16>, #b>
    %t1 = tt.call @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': False}:tensor<512xf16>,i64->i64"(%y, %v) : (tensor<512xf16, #b>, i64) -> i64
    %z = tt.load %p, %m, %minus {isVolatile = true} : tensor<512x!tt.ptr<f16>, #b>
    %t2 = tt.call @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': False}:tensor<512xf16>,i64->i64"(%z, %v) : (tensor<512xf16, #b>, i64) -> i64
    %g = tt.call @"remora:tlx.async_load_commit_group@remora.tlx.copies:h:{}:->i64"() : () -> i64
    %w3 = tt.call @"remora:tlx.async_load_wait_group@remora.tlx.copies:h:{'pendings': 3}:->i64"() : () -> i64
    %w0 = tt.call @"remora:tlx.async_load_wait_group@remora.tlx.copies:h:{'pendings': 0}:->i64"() : () -> i64
    tt.return
  }

  // A thread holds single elements: 2 bytes are too few for the copy engine.
  tt.func public @registers(%base: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %i: i32, %m: tensor<512xi1, #one>) {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (512,)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    %r = tt.make_range {start = 0 : i32, end = 512 : i32} : tensor<512xi32, #one>
    %s = tt.splat %base : !tt.ptr<f16> -> tensor<512x!tt.ptr<f16>, #one>
    %p = tt.addptr %s, %r : tensor<512x!tt.ptr<f16>, #one>, tensor<512xi32, #one>
    %x = tt.load %p, %m {isVolatile = true} : tensor<512x!tt.ptr<f16>, #one>
    %t = tt.call @"remora:tlx.async_load@remora.tlx.copies:h:{'is_volatile': True}:tensor<512xf16>,i64->i64"(%x, %v) : (tensor<512xf16, #one>, i64) -> i64
    tt.return
  }
}

// CHECK:       tt.func public @engine
// CHECK-NOT:     tt.load
// CHECK:         ttg.async_copy_global_to_local %[[P:.*]], %[[V:.*]] : tensor<512x!tt.ptr<f16>, #blocked> -> <512xf16, #shared, #smem, mutable>
// CHECK:         ttg.async_copy_global_to_local %[[P]], %[[V]] mask %[[M:.*]] other %{{.*}} : tensor<512x!tt.ptr<f16>, #blocked>
// CHECK:         %[[Z:.*]] = tt.load %[[P]], %[[M]], %{{.*}} : tensor<512x!tt.ptr<f16>, #blocked>
// CHECK-NEXT:    ttg.local_store %[[Z]], %[[V]]
// CHECK:         ttg.async_commit_group
// CHECK:         tt.elementwise_inline_asm "cp.async.wait_group 3;{{.*}}pure = false
// CHECK-NEXT:    ttg.barrier
// CHECK:         tt.elementwise_inline_asm "cp.async.wait_group 0;{{.*}}pure = false
// CHECK-NEXT:    ttg.barrier
// The buffer's memory is its own until then.
// CHECK:         ttg.local_dealloc

// CHECK:       tt.func public @registers
// CHECK:         %[[X:.*]] = tt.load %{{.*}}, %arg2, %{{.*}} {isVolatile = true}
// CHECK-NEXT:    ttg.local_store %[[X]]
// Copies that nobody waits for are drained; those here are done.
// CHECK:         cp.async.wait_all

// AMD-NOT:     async_copy
// AMD-NOT:     inline_asm
// AMD-NOT:     local_dealloc
// AMD:         tt.func public @engine
// AMD-COUNT-3:   ttg.local_store
// AMD:         tt.func public @registers
// AMD:           tt.load %{{.*}}, %arg2, %{{.*}} {isVolatile = true}
// AMD-NEXT:      ttg.local_store
