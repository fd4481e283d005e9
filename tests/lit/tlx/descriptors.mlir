// Copies by descriptors: every descriptor gets the layout that stock Triton gives it; a buffer
// with another layout goes through a cast, which FitDescriptors takes out after that stock pass.

// Triton 3.7 writes !tt.tensordesc<tensor<64x64xf16>>.
// UNSUPPORTED: triton-3.7

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s
// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations,nvidia.ttnvgpuir.optimize_descriptor_encoding,remora.tlx.lower.boxes:FitDescriptors | filecheck %s --check-prefix FIT

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'layout': None, 'num': 1, 'shape': (64, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'layout': '#ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16}>', 'num': 1, 'shape': (64, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.async_descriptor_load@remora.tlx.descriptors::{'evict': '', 'rank': 2}:!tt.tensordesc<64x64xf16>,i64,i64,i32,i32->"(!tt.tensordesc<64x64xf16>, i64, i64, i32, i32)
  tt.func private @"remora:tlx.async_descriptor_store@remora.tlx.descriptors::{'evict': '', 'rank': 2, 'reduce': 'add'}:!tt.tensordesc<64x64xf16>,i64,i32,i32->"(!tt.tensordesc<64x64xf16>, i64, i32, i32)
  tt.func private @"remora:tlx.async_descriptor_store_wait@remora.tlx.descriptors::{'pendings': 2, 'read_only': True}:->"()

  tt.func public @copies(%d: !tt.tensordesc<64x64xf16>, %e: !tt.tensordesc<64x64xf16>, %i: i32) {
    %b = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'layout': None, 'num': 1, 'shape': (64, 64)}:->i64"() : () -> i64
    %n = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'layout': '#ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16}>', 'num': 1, 'shape': (64, 64)}:->i64"() : () -> i64
    %c0 = arith.constant 0 : i32
    %bar = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %c0) : (i64, i32) -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %c0) : (i64, i32) -> i64
    %w = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%n, %c0) : (i64, i32) -> i64
    tt.call @"remora:tlx.async_descriptor_load@remora.tlx.descriptors::{'evict': '', 'rank': 2}:!tt.tensordesc<64x64xf16>,i64,i64,i32,i32->"(%d, %v, %bar, %i, %c0) : (!tt.tensordesc<64x64xf16>, i64, i64, i32, i32) -> ()
    tt.call @"remora:tlx.async_descriptor_store@remora.tlx.descriptors::{'evict': '', 'rank': 2, 'reduce': 'add'}:!tt.tensordesc<64x64xf16>,i64,i32,i32->"(%e, %w, %i, %c0) : (!tt.tensordesc<64x64xf16>, i64, i32, i32) -> ()
    tt.call @"remora:tlx.async_descriptor_store_wait@remora.tlx.descriptors::{'pendings': 2, 'read_only': True}:->"() : () -> ()
    tt.return
  }
}

// CHECK-DAG:   #[[WIDE:.*]] = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
// CHECK-DAG:   #[[NARROW:.*]] = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16}>
// CHECK:       tt.func public @copies(%[[D:.*]]: !tt.tensordesc<64x64xf16, #[[WIDE]]>, %[[E:.*]]: !tt.tensordesc<64x64xf16, #[[WIDE]]>, %[[I:.*]]: i32
// CHECK:       ttng.async_tma_copy_global_to_local %[[D]][%[[I]], %{{.*}}] %[[V:.*]], %{{.*}}, %true{{.*}} : !tt.tensordesc<64x64xf16, #[[WIDE]]>
// CHECK:       %[[C:.*]] = builtin.unrealized_conversion_cast %{{.*}} : !ttg.memdesc<64x64xf16, #[[NARROW]], #smem, mutable> to !ttg.memdesc<64x64xf16, #[[WIDE]], #smem, mutable>
// CHECK:       ttng.async_tma_reduce add, %[[E]][%[[I]], %{{.*}}] %[[C]]
// CHECK:       ttng.async_tma_store_wait {pendings = 2 : i32

// FIT-DAG:     #[[WIDE:.*]] = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
// FIT-DAG:     #[[NARROW:.*]] = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16}>
// FIT:         tt.func public @copies(%{{.*}}: !tt.tensordesc<64x64xf16, #[[WIDE]]>, %{{.*}}: !tt.tensordesc<64x64xf16, #[[NARROW]]>
// FIT-NOT:     unrealized_conversion_cast
// FIT:         ttng.async_tma_reduce add, {{.*}} : !tt.tensordesc<64x64xf16, #[[NARROW]]>, !ttg.memdesc<64x64xf16, #[[NARROW]], #smem, mutable>
