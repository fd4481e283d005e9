// Other CTAs' memory is reached by mapa; CTAs meet after barriers are initialised, and what
// others reach is kept to the end.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 2, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (512,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.cluster_cta_rank@remora.tlx.clusters:v:{}:->i32"() -> i32
  tt.func private @"remora:tlx.cluster_size_1d@remora.tlx.clusters:v:{}:->i32"() -> i32
  tt.func private @"remora:tlx.cluster_barrier@remora.tlx.clusters::{}:->"()
  tt.func private @"remora:tlx.remote_view@remora.tlx.clusters:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': False, 'remote': True}:i64->"(i64)
  tt.func private @"remora:tlx.remote_shmem_store@remora.tlx.clusters::{}:tensor<512xf32>,i64,i32->"(tensor<512xf32, #b>, i64, i32)
  tt.func private @"remora:tlx.async_remote_shmem_store@remora.tlx.clusters::{}:tensor<512xf32>,i64,i32,i64->"(tensor<512xf32, #b>, i64, i32, i64)

  // CHECK-LABEL: tt.func public @reaching
  // CHECK: %[[BARS:.*]] = ttg.local_alloc
  // CHECK: ttng.init_barrier
  // CHECK-NEXT: "fence.mbarrier_init.release.cluster;"
  // CHECK-NEXT: "// remora: cluster of programs of 128 threads"
  // CHECK-NEXT: llvm.nvvm.barrier.cluster.arrive.relaxed.aligned
  // CHECK-NEXT: llvm.nvvm.barrier.cluster.wait.aligned
  // CHECK: %[[BUFFERS:.*]] = ttg.local_alloc
  // CHECK: "mapa.shared::cluster.u32 $0, $1, $2;"
  // CHECK: ttg.barrier local
  // CHECK: %[[WARP:.*]] = ttg.warp_id
  // CHECK: mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0], 2;
  // CHECK-SAME: %[[WARP]]
  // CHECK: ttg.convert_layout %{{.*}} : tensor<512xf32, #{{.*}}> -> tensor<512xf32, #[[PIECES:.*]]>
  // CHECK: unrealized_conversion_cast %{{.*}} : tensor<512xf32, #[[PIECES]]> to !llvm.struct<(f32, f32, f32, f32)>
  // CHECK: "st.shared::cluster.v4.b32 [$4], {$0, $1, $2, $3};"
  // CHECK: "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$4], {$0, $1, $2, $3}, [$5];"
  // CHECK: "mov.u32 $0, %cluster_ctarank;"
  // CHECK: "mov.u32 $0, %cluster_nctarank;"
  // CHECK-NEXT: llvm.nvvm.barrier.cluster.arrive.aligned
  // CHECK-NEXT: llvm.nvvm.barrier.cluster.wait.aligned
  // CHECK-DAG: ttg.local_dealloc %[[BARS]]
  // CHECK-DAG: ttg.local_dealloc %[[BUFFERS]]
  // CHECK: tt.return
  tt.func public @reaching(%x: tensor<512xf32, #b>, %r: i32) -> (i32, i32) {
    %i = arith.constant 0 : i32
    %bars = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 2, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (512,)}:->i64"() : () -> i64
    %bar = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%bars, %i) : (i64, i32) -> i64
    %v = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    %there = tt.call @"remora:tlx.remote_view@remora.tlx.clusters:h:{}:i64,i32->i64"(%bar, %r) : (i64, i32) -> i64
    tt.call @"remora:tlx.barrier_arrive@remora.tlx.barriers::{'arrive_count': 2, 'is_warp_barrier': False, 'remote': True}:i64->"(%there) : (i64) -> ()
    tt.call @"remora:tlx.remote_shmem_store@remora.tlx.clusters::{}:tensor<512xf32>,i64,i32->"(%x, %v, %r) : (tensor<512xf32, #b>, i64, i32) -> ()
    tt.call @"remora:tlx.async_remote_shmem_store@remora.tlx.clusters::{}:tensor<512xf32>,i64,i32,i64->"(%x, %v, %r, %bar) : (tensor<512xf32, #b>, i64, i32, i64) -> ()
    %rank = tt.call @"remora:tlx.cluster_cta_rank@remora.tlx.clusters:v:{}:->i32"() : () -> i32
    %size = tt.call @"remora:tlx.cluster_size_1d@remora.tlx.clusters:v:{}:->i32"() : () -> i32
    tt.call @"remora:tlx.cluster_barrier@remora.tlx.clusters::{}:->"() : () -> ()
    tt.return %rank, %size : i32, i32
  }
}
