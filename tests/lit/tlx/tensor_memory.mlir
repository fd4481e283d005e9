// Tensor memory and products of one CTA are Triton's operations; buffers that share columns are
// read in one allocation, and a part of a matrix keeps its columns to the end.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1, 64], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], order = [0, 1]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (128, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (64, 128)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (128, 64), 'storage': 'tmem'}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 1, 'is_async': True, 'pair': False, 'pred': False, 'use_acc': False}:i64,i64,i64,i64->"(i64, i64, i64, i64)
  tt.func private @"remora:tlx.tcgen05_commit@remora.tlx.tcgen05::{'pair': False}:i64->"(i64)
  tt.func private @"remora:tlx.subslice@remora.tlx.views:h:{'offset': (0, 64), 'shape': (128, 64)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128x64xf32>"(i64) -> tensor<128x64xf32, #b>
  tt.func private @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<128x64xf32>,i64->"(tensor<128x64xf32, #b>, i64)
  tt.func private @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 0, 'is_async': False, 'pair': False, 'pred': True, 'use_acc': True}:i64,i64,i64,i1->"(i64, i64, i64, i1)

  tt.func public @words(%p: !tt.ptr<f32>, %i: i32) {
    %c1_i32 = arith.constant 1 : i32
    %cst = arith.constant dense<1.000000e+00> : tensor<128x64xf32, #b>
    %c0_i32 = arith.constant 0 : i32
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (128, 64)}:->i64"() : () -> i64
    %b = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (64, 128)}:->i64"() : () -> i64
    %s = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() : () -> i64
    %h = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 2, 'shape': (128, 64), 'storage': 'tmem'}:i64->i64"(%s) : (i64) -> i64
    %bars = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %acc = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%s, %i) : (i64, i32) -> i64
    %0 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%bars, %c0_i32) : (i64, i32) -> i64
    %1 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %c0_i32) : (i64, i32) -> i64
    %2 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %c0_i32) : (i64, i32) -> i64
    tt.call @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 1, 'is_async': True, 'pair': False, 'pred': False, 'use_acc': False}:i64,i64,i64,i64->"(%1, %2, %acc, %0) : (i64, i64, i64, i64) -> ()
    %3 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%bars, %c0_i32) : (i64, i32) -> i64
    tt.call @"remora:tlx.tcgen05_commit@remora.tlx.tcgen05::{'pair': False}:i64->"(%3) : (i64) -> ()
    %left = tt.call @"remora:tlx.subslice@remora.tlx.views:h:{'offset': (0, 64), 'shape': (128, 64)}:i64->i64"(%acc) : (i64) -> i64
    %x = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128x64xf32>"(%left) : (i64) -> tensor<128x64xf32, #b>
    %4 = arith.addf %x, %cst : tensor<128x64xf32, #b>
    tt.call @"remora:tlx.local_store@remora.tlx.buffers::{}:tensor<128x64xf32>,i64->"(%4, %left) : (tensor<128x64xf32, #b>, i64) -> ()
    %5 = arith.cmpi sgt, %i, %c0_i32 : i32
    %6 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%h, %c1_i32) : (i64, i32) -> i64
    %7 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %c0_i32) : (i64, i32) -> i64
    tt.call @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 0, 'is_async': False, 'pair': False, 'pred': True, 'use_acc': True}:i64,i64,i64,i1->"(%6, %7, %acc, %5) : (i64, i64, i64, i1) -> ()
    tt.return
  }
}

// CHECK:      %[[S:.*]] = ttng.tmem_alloc : () -> !ttg.memdesc<2x128x128xf32, #tmem, #ttng.tensor_memory, mutable>
// CHECK-NEXT: %[[H:.*]] = ttg.memdesc_reinterpret %[[S]] : {{.*}} -> !ttg.memdesc<8x128x64xf16
// CHECK:      %[[ACC:.*]] = ttg.memdesc_index %[[S]][%{{.*}}]
// CHECK:      ttng.tc_gen5_mma %{{.*}}, %{{.*}}, %[[ACC]], %false{{.*}}, %true{{.*}}, %{{.*}}[%true{{.*}}] {is_async}
// CHECK:      ttng.tc_gen5_commit
// CHECK:      %[[LEFT:.*]] = ttng.tmem_subslice %[[ACC]] {{.*}} = 64 : i32
// CHECK:      %{{.*}} = ttng.tmem_load %[[LEFT]] : {{.*}} -> tensor<128x64xf32, #linear>
// CHECK:      ttng.tmem_store %{{.*}}, %[[LEFT]], %true
// CHECK:      %[[P:.*]] = arith.cmpi sgt
// CHECK:      %[[A:.*]] = ttg.memdesc_index %[[H]][
// CHECK:      ttng.tc_gen5_mma %[[A]], %{{.*}}, %[[ACC]], %true{{.*}}, %[[P]] :
// CHECK-NOT:  is_async
// CHECK:      ttg.local_dealloc %[[S]]
// CHECK-NEXT: ttg.local_dealloc
// CHECK-NEXT: tt.return
