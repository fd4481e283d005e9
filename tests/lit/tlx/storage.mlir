// Allocations that share memory: one block of bytes, in which the index of a buffer says where it
// lies; what is beside all others has a block of its own.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.storage_alias_spec@remora.tlx.storage:h:{'bytes': None}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (256,)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'int8', 'num': 2, 'shape': (128,)}:i64->i64"(i64) -> i64
  tt.func private @"remora:tlx.set_buffer_overlap@remora.tlx.storage::{'tree': ('distinct', 1, (('shared', 1, (0, ('distinct', 1, (1, 2)))), 3))}:i64,i64,i64,i64,i64->"(i64, i64, i64, i64, i64)
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xf32>"(i64) -> tensor<128xf32, #b>
  tt.func private @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xi8>"(i64) -> tensor<128xi8, #b>

  tt.func public @shared(%i: i32) -> (tensor<128xf32, #b>, tensor<128xi8, #b>) {
    %s = tt.call @"remora:tlx.storage_alias_spec@remora.tlx.storage:h:{'bytes': None}:->i64"() : () -> i64
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (256,)}:i64->i64"(%s) : (i64) -> i64
    %b = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:i64->i64"(%s) : (i64) -> i64
    %c = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 2, 'shape': (128,)}:i64->i64"(%s) : (i64) -> i64
    %d = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'int8', 'num': 2, 'shape': (128,)}:i64->i64"(%s) : (i64) -> i64
    tt.call @"remora:tlx.set_buffer_overlap@remora.tlx.storage::{'tree': ('distinct', 1, (('shared', 1, (0, ('distinct', 1, (1, 2)))), 3))}:i64,i64,i64,i64,i64->"(%s, %a, %b, %c, %d) : (i64, i64, i64, i64, i64) -> ()
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%c, %i) : (i64, i32) -> i64
    %w = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%d, %i) : (i64, i32) -> i64
    %x = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xf32>"(%v) : (i64) -> tensor<128xf32, #b>
    %y = tt.call @"remora:tlx.local_load@remora.tlx.buffers:v:{}:i64->tensor<128xi8>"(%w) : (i64) -> tensor<128xi8, #b>
    tt.return %x, %y : tensor<128xf32, #b>, tensor<128xi8, #b>
  }
}

// CHECK-NOT:   remora:
// CHECK:       tt.func public @shared
// CHECK:         %[[M:.*]] = ttg.local_alloc {alignment = 16 : i32} : () -> !ttg.memdesc<16x128xi8,
// CHECK-NEXT:    %[[O:.*]] = ttg.local_alloc {alignment = 16 : i32} : () -> !ttg.memdesc<2x128xi8,
// CHECK:         ttg.memdesc_reinterpret %[[M]] : !ttg.memdesc<16x128xi8, {{.*}}> -> !ttg.memdesc<2x256xf32,
// CHECK-NEXT:    ttg.memdesc_reinterpret %[[M]] : !ttg.memdesc<16x128xi8, {{.*}}> -> !ttg.memdesc<4x128xf32,
// CHECK-NEXT:    %[[C:.*]] = ttg.memdesc_reinterpret %[[M]] : !ttg.memdesc<16x128xi8, {{.*}}> -> !ttg.memdesc<4x128xf32,
// CHECK:         %[[I:.*]] = arith.muli %arg0, %c2_i32
// CHECK:         %[[J:.*]] = arith.addi %[[I]], %c1_i32
// CHECK-NEXT:    ttg.memdesc_index %[[C]][%[[J]]]
// CHECK-NEXT:    ttg.memdesc_index %[[O]][%arg0]
