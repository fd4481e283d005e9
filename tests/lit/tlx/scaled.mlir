// Block-scaled products: Triton's operation; several buffers of scales are the columns they take.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (128, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (64, 128)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 2, 'shape': (128, 8), 'storage': 'tmem'}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (1, 1, 2, 2, 256)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.tensor_dot_scaled@remora.tlx.scaled::{'barriers': 0, 'use_acc': False, 'pred': False, 'pair': False, 'is_async': True, 'formats': ('e2m1', 'e2m1'), 'exact': (True, False), 'block': 16}:i64,i64,i64,i64,i64->"(i64, i64, i64, i64, i64)

  tt.func public @words(%i: i32) {
    %0 = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (128, 64)}:->i64"() : () -> i64
    %1 = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (64, 128)}:->i64"() : () -> i64
    %2 = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() : () -> i64
    %3 = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 2, 'shape': (128, 8), 'storage': 'tmem'}:->i64"() : () -> i64
    %4 = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'uint8', 'num': 1, 'shape': (1, 1, 2, 2, 256)}:->i64"() : () -> i64
    %a = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%0, %i) : (i64, i32) -> i64
    %b = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%1, %i) : (i64, i32) -> i64
    %acc = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%2, %i) : (i64, i32) -> i64
    %u = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%3, %i) : (i64, i32) -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%4, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.tensor_dot_scaled@remora.tlx.scaled::{'barriers': 0, 'use_acc': False, 'pred': False, 'pair': False, 'is_async': True, 'formats': ('e2m1', 'e2m1'), 'exact': (True, False), 'block': 16}:i64,i64,i64,i64,i64->"(%a, %b, %acc, %u, %v) : (i64, i64, i64, i64, i64) -> ()
    tt.return
  }
}

// CHECK:      ttng.tmem_alloc : () -> !ttg.memdesc<2x128x8xi32
// CHECK:      %[[U:.*]] = ttg.memdesc_index %{{.*}} : !ttg.memdesc<2x128x8xi32{{.*}} -> !ttg.memdesc<128x8xi32
// CHECK-NEXT: ttg.memdesc_reinterpret %[[U]] : {{.*}} -> !ttg.memdesc<128x8xi8, #tmem_scales
// CHECK:      ttg.memdesc_reinterpret {{.*}} -> !ttg.memdesc<128x8xf8E4M3FN, #tmem_scales
// CHECK:      %[[T:.*]] = ttng.tmem_alloc : () -> !ttg.memdesc<128x8xi8, #tmem_scales
// CHECK:      %[[S:.*]] = ttg.memdesc_reinterpret {{.*}} : !ttg.memdesc<1x1x2x2x256xi8{{.*}} -> !ttg.memdesc<128x8xi8, #shared
// CHECK:      ttng.tmem_copy %[[S]], %[[T]]
// CHECK:      ttng.tc_gen5_mma_scaled {{.*}} lhs = e2m1 rhs = e2m1
