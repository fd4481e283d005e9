// Barriers, named barriers and fences: Triton's own operations, PTX where it has none.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 3, 'dtype': 'int64', 'num': 2, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.alloc_warp_barrier@remora.tlx.barriers:h:{'arrive_count': 64, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.barrier_expect_bytes@remora.tlx.barriers::{'size': 64}:i64->"(i64)
  tt.func private @"remora:tlx.barrier_wait@remora.tlx.barriers::{}:i64,i32,i1->"(i64, i32, i1)
  tt.func private @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': False}:i64->"(i64)
  tt.func private @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': True}:i64->"(i64)
  tt.func private @"remora:tlx.named_barrier_wait@remora.tlx.barriers::{'id': 9, 'threads': None}:i32->"(i32)
  tt.func private @"remora:tlx.named_barrier_arrive@remora.tlx.barriers::{'id': None, 'threads': 256}:i32->"(i32)
  tt.func private @"remora:tlx.fence@remora.tlx.barriers::{'scope': 'gpu'}:->"()
  tt.func private @"remora:tlx.fence_async_shared@remora.tlx.barriers::{'scope': 'async_shared'}:->"()

  tt.func public @words(%i: i32, %p: i1) {
    %b = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 3, 'dtype': 'int64', 'num': 2, 'shape': (1,)}:->i64"() : () -> i64
    %w = tt.call @"remora:tlx.alloc_warp_barrier@remora.tlx.barriers:h:{'arrive_count': 64, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %i) : (i64, i32) -> i64
    %u = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%w, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.barrier_expect_bytes@remora.tlx.barriers::{'size': 64}:i64->"(%v) : (i64) -> ()
    tt.call @"remora:tlx.barrier_wait@remora.tlx.barriers::{}:i64,i32,i1->"(%v, %i, %p) : (i64, i32, i1) -> ()
    tt.call @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': False}:i64->"(%v) : (i64) -> ()
    tt.call @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': True}:i64->"(%u) : (i64) -> ()
    tt.call @"remora:tlx.named_barrier_wait@remora.tlx.barriers::{'id': 9, 'threads': None}:i32->"(%i) : (i32) -> ()
    tt.call @"remora:tlx.named_barrier_arrive@remora.tlx.barriers::{'id': None, 'threads': 256}:i32->"(%i) : (i32) -> ()
    tt.call @"remora:tlx.fence@remora.tlx.barriers::{'scope': 'gpu'}:->"() : () -> ()
    tt.call @"remora:tlx.fence_async_shared@remora.tlx.barriers::{'scope': 'async_shared'}:->"() : () -> ()
    tt.return
  }
}

// CHECK:       %[[B:.*]] = ttg.local_alloc : () -> !ttg.memdesc<2x1xi64, #shared, #smem, mutable>
// CHECK-COUNT-2: ttng.init_barrier %{{.*}}, 3 : !ttg.memdesc<1xi64, #shared, #smem, mutable>
// CHECK:       %[[W:.*]] = ttg.local_alloc : () -> !ttg.memdesc<1x1xi64, #shared, #smem, mutable>
// CHECK:       ttng.init_barrier %{{.*}}, 64
// CHECK:       %[[V:.*]] = ttg.memdesc_index %[[B]][%arg0]
// CHECK:       %[[U:.*]] = ttg.memdesc_index %[[W]][%arg0]
// CHECK:       ttng.barrier_expect %[[V]], 64, %true
// CHECK:       ttng.wait_barrier %[[V]], %arg0, %arg1
// CHECK:       ttng.arrive_barrier %[[V]], 2
// CHECK:       unrealized_conversion_cast %[[U]] : !ttg.memdesc<1xi64, #shared, #smem, mutable> to !llvm.struct<(ptr<3>, i32)>
// CHECK:       %[[A:.*]] = llvm.ptrtoint
// CHECK:       llvm.inline_asm has_side_effects "mbarrier.arrive.shared::cta.b64 _, [$0], 2;", "r,~{memory}" %[[A]]
// CHECK:       "llvm.nvvm.barrier.cta.sync.aligned.count"(%c9_i32{{.*}}, %arg0)
// CHECK:       "llvm.nvvm.barrier.cta.arrive.aligned.count"(%arg0, %c256_i32
// CHECK:       llvm.inline_asm has_side_effects "fence.acq_rel.gpu;"
// CHECK:       ttng.fence_async_shared {bCluster = false}
// The warp barrier's memory is its own to the end.
// CHECK:       ttg.local_dealloc %[[W]]
