// Views: what the matrix unit wants of a transposed view is mapped back to the allocation;
// slices keep the shape of what they are a part of; bytes are read with another shape.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.local_trans@remora.tlx.views:h:{'dims': (1, 0)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.subslice@remora.tlx.views:h:{'offset': (0, 32), 'shape': (64, 32)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.local_reinterpret@remora.tlx.views:h:{'dtype': 'int32', 'layout': None, 'num': 0, 'shape': (2048,)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<2048xi32>"(i64) -> tensor<2048xi32, #c>
  tt.func private @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<64x64xf16>,i64->"(tensor<64x64xf16, #b>, i64)
  tt.func private @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 1}:tensor<64x64xf32>->tensor<64x64xf32>"(tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
  tt.func private @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>

  tt.func public @transposed(%x: tensor<64x64xf16, #b>, %acc: tensor<64x64xf32, #b>, %i: i32) -> tensor<64x64xf32, #b> {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<64x64xf16>,i64->"(%x, %v) : (tensor<64x64xf16, #b>, i64) -> ()
    %t = tt.call @"remora:tlx.local_trans@remora.tlx.views:h:{'dims': (1, 0)}:i64->i64"(%v) : (i64) -> i64
    %p = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(%v, %t, %acc) : (i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    %q = tt.call @"remora:tlx.async_dot@remora.tlx.dots:v:{'imprecise': 0, 'use_acc': True}:i64,i64,tensor<64x64xf32>->tensor<64x64xf32>"(%t, %v, %acc) : (i64, i64, tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    %w = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 1}:tensor<64x64xf32>->tensor<64x64xf32>"(%q) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    %y = arith.addf %p, %p : tensor<64x64xf32, #b>
    %z = tt.call @"remora:tlx.async_dot_wait@remora.tlx.dots:v:{'pendings': 0}:tensor<64x64xf32>->tensor<64x64xf32>"(%w) : (tensor<64x64xf32, #b>) -> tensor<64x64xf32, #b>
    %r = arith.addf %y, %z : tensor<64x64xf32, #b>
    tt.return %r : tensor<64x64xf32, #b>
  }

  tt.func public @parts(%x: tensor<64x64xf16, #b>, %i: i32) -> tensor<2048xi32, #c> {
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (64, 64)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<64x64xf16>,i64->"(%x, %v) : (tensor<64x64xf16, #b>, i64) -> ()
    %s = tt.call @"remora:tlx.subslice@remora.tlx.views:h:{'offset': (0, 32), 'shape': (64, 32)}:i64->i64"(%v) : (i64) -> i64
    %t = tt.call @"remora:tlx.local_trans@remora.tlx.views:h:{'dims': (1, 0)}:i64->i64"(%s) : (i64) -> i64
    %r = tt.call @"remora:tlx.local_reinterpret@remora.tlx.views:h:{'dtype': 'int32', 'layout': None, 'num': 0, 'shape': (2048,)}:i64->i64"(%v) : (i64) -> i64
    %y = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<2048xi32>"(%r) : (i64) -> tensor<2048xi32, #c>
    tt.return %y : tensor<2048xi32, #c>
  }
}

// CHECK-DAG:   [[N:#shared]] = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
// CHECK-DAG:   [[T:#shared1]] = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
// CHECK-DAG:   [[P:#shared2]] = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// CHECK-NOT:   remora:
// CHECK:       tt.func public @transposed
// CHECK:         %[[A:.*]] = ttg.local_alloc : () -> !ttg.memdesc<2x64x64xf16, [[N]], #smem, mutable>
// CHECK-NEXT:    %[[V:.*]] = ttg.memdesc_index %[[A]][%arg2]
// CHECK-NEXT:    ttg.local_store %arg0, %[[V]]
// CHECK-NEXT:    %[[VT:.*]] = ttg.memdesc_trans %[[V]] {order = array<i32: 1, 0>} : !ttg.memdesc<64x64xf16, [[N]], #smem, mutable> -> !ttg.memdesc<64x64xf16, [[T]], #smem, mutable>
// CHECK:         %[[X:.*]] = ttng.warp_group_dot %[[V]], %[[VT]]
// CHECK:         %[[Y:.*]] = ttng.warp_group_dot %[[VT]], %[[V]]
// The first wait was asked for the second product, covers the first one, and hands it on.
// CHECK-NEXT:    %[[W:.*]]:2 = ttng.warp_group_dot_wait %[[Y]], %[[X]] {pendings = 1 : i32}
// CHECK-NEXT:    %[[X1:.*]] = ttg.convert_layout %[[W]]#1
// CHECK-NEXT:    %[[X2:.*]] = ttg.convert_layout %[[W]]#1
// CHECK-NEXT:    arith.addf %[[X2]], %[[X1]]
// CHECK-NEXT:    ttng.warp_group_dot_wait %[[W]]#0 {pendings = 0 : i32}

// CHECK:       tt.func public @parts
// CHECK:         %[[V:.*]] = ttg.memdesc_index
// CHECK-SAME:      -> !ttg.memdesc<64x64xf16, [[P]], #smem, mutable>
// CHECK:         %[[S:.*]] = ttg.memdesc_subslice %[[V]][0, 32] : !ttg.memdesc<64x64xf16, [[P]], #smem, mutable> -> !ttg.memdesc<64x32xf16, [[P]], #smem, mutable, 64x64>
// CHECK-NEXT:    ttg.memdesc_trans %[[S]] {order = array<i32: 1, 0>} : !ttg.memdesc<64x32xf16, [[P]], #smem, mutable, 64x64> -> !ttg.memdesc<32x64xf16, #shared{{.*}}, #smem, mutable, 64x64>
// CHECK-NEXT:    %[[R:.*]] = ttg.memdesc_reinterpret %[[V]] : !ttg.memdesc<64x64xf16, [[P]], #smem, mutable> -> !ttg.memdesc<2048xi32, #shared{{.*}}, #smem, mutable>
// CHECK-NEXT:    ttg.local_load %[[R]]
