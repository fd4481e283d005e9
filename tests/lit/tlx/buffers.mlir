// Allocation, view, load and store are the same on every target; buffers go through
// loops, branches and selects as what they are.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s
// RUN: sed 's/cuda:90/hip:gfx942/' %s > %t.mlir
// RUN: remora opt %t.mlir -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<128xf32>,i64->"(tensor<128xf32, #b>, i64)
  tt.func private @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xf32>"(i64) -> tensor<128xf32, #b>

  tt.func public @round_trip(%x: tensor<128xf32, #b>, %i: i32) -> tensor<128xf32, #b> {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<128xf32>,i64->"(%x, %v) : (tensor<128xf32, #b>, i64) -> ()
    %y = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xf32>"(%v) : (i64) -> tensor<128xf32, #b>
    tt.return %y : tensor<128xf32, #b>
  }

  tt.func public @carried(%x: tensor<128xf32, #b>, %i: i32, %n: i32, %which: i1) -> tensor<128xf32, #b> {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    %w = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %n) : (i64, i32) -> i64
    %s = arith.select %which, %v, %w : i64
    %l:2 = scf.for %k = %i to %n step %i iter_args(%p = %s, %q = %w) -> (i64, i64) : i32 {
      tt.call @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<128xf32>,i64->"(%x, %p) : (tensor<128xf32, #b>, i64) -> ()
      scf.yield %q, %p : i64, i64
    }
    %f = scf.if %which -> i64 {
      scf.yield %l#0 : i64
    } else {
      scf.yield %w : i64
    }
    %y = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xf32>"(%f) : (i64) -> tensor<128xf32, #b>
    tt.return %y : tensor<128xf32, #b>
  }
}

// CHECK-NOT:   remora:
// CHECK:       tt.func public @round_trip
// CHECK-NEXT:    %[[A:.*]] = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #shared, #smem, mutable>
// CHECK-NEXT:    %[[V:.*]] = ttg.memdesc_index %[[A]][%arg1] : !ttg.memdesc<2x128xf32, #shared, #smem, mutable> -> !ttg.memdesc<128xf32, #shared, #smem, mutable>
// CHECK-NEXT:    ttg.local_store %arg0, %[[V]]
// CHECK-NEXT:    %[[Y:.*]] = ttg.local_load %[[V]] : !ttg.memdesc<128xf32, #shared, #smem, mutable> -> tensor<128xf32, #blocked>
// CHECK-NEXT:    tt.return %[[Y]]

// CHECK:       tt.func public @carried
// CHECK:         %[[S:.*]] = scf.if %arg3 -> (!ttg.memdesc<128xf32, #shared, #smem, mutable>) {
// CHECK:         %[[L:.*]]:2 = scf.for {{.*}} iter_args(%[[P:.*]] = %[[S]], %[[Q:.*]] = %{{.*}}) -> (!ttg.memdesc<128xf32, #shared, #smem, mutable>, !ttg.memdesc<128xf32, #shared, #smem, mutable>)
// CHECK-NEXT:      ttg.local_store %arg0, %[[P]]
// CHECK-NEXT:      scf.yield %[[Q]], %[[P]]
// CHECK-NEXT:    }
// CHECK:         %[[F:.*]] = scf.if %arg3 -> (!ttg.memdesc<128xf32, #shared, #smem, mutable>)
// CHECK:         ttg.local_load %[[F]]
// CHECK-NOT:   remora:
