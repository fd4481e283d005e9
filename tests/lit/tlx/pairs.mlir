// Products of two CTAs: the instructions, issued by the first CTA's first warp; the CTAs meet
// before tensor memory is allocated for pairs.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (128, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (64, 64)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() -> i64
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 1, 'is_async': True, 'pair': True, 'pred': False, 'use_acc': False}:i64,i64,i64,i64->"(i64, i64, i64, i64)
  tt.func private @"remora:tlx.tcgen05_commit@remora.tlx.tcgen05::{'pair': True}:i64->"(i64)

  tt.func public @pair(%p: !tt.ptr<f32>, %i: i32) {
    %c0_i32 = arith.constant 0 : i32
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (128, 64)}:->i64"() : () -> i64
    %b = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp16', 'num': 1, 'shape': (64, 64)}:->i64"() : () -> i64
    %s = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'fp32', 'num': 1, 'shape': (128, 128), 'storage': 'tmem'}:->i64"() : () -> i64
    %bars = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %0 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%bars, %c0_i32) : (i64, i32) -> i64
    %1 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %c0_i32) : (i64, i32) -> i64
    %2 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %c0_i32) : (i64, i32) -> i64
    %3 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%s, %c0_i32) : (i64, i32) -> i64
    tt.call @"remora:tlx.tensor_dot@remora.tlx.tcgen05::{'barriers': 1, 'is_async': True, 'pair': True, 'pred': False, 'use_acc': False}:i64,i64,i64,i64->"(%1, %2, %3, %0) : (i64, i64, i64, i64) -> ()
    %4 = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%bars, %c0_i32) : (i64, i32) -> i64
    tt.call @"remora:tlx.tcgen05_commit@remora.tlx.tcgen05::{'pair': True}:i64->"(%4) : (i64) -> ()
    tt.return
  }
}

// CHECK:      ttng.tmem_alloc
// CHECK:      ttng.init_barrier
// CHECK-NEXT: "fence.mbarrier_init.release.cluster;"
// CHECK-NEXT: remora: cluster of programs of 128 threads
// CHECK-NEXT: llvm.nvvm.barrier.cluster.arrive.relaxed.aligned
// CHECK-NEXT: llvm.nvvm.barrier.cluster.wait.aligned
// CHECK:      %[[RANK:.*]] = tt.elementwise_inline_asm "mov.u32 $0, %cluster_ctarank;"
// CHECK:      %[[ODD:.*]] = arith.andi %[[RANK]], %c1_i32
// CHECK:      %[[FIRST:.*]] = arith.cmpi eq, %[[ODD]]
// CHECK:      arith.shli %c3_i32{{.*}}, %[[RANK]]
// CHECK:      %[[ISSUES:.*]] = arith.andi %{{.*}}, %[[FIRST]] : i1
// CHECK:      llvm.inline_asm has_side_effects "{{.*}}elect.sync{{.*}}tcgen05.mma.cta_group::2.kind::f16 [$0], left, right, 270598160, sum;{{.*}}tcgen05.commit.cta_group::2{{.*}}multicast::cluster.b64
// CHECK:      llvm.inline_asm has_side_effects "{{.*}}tcgen05.commit.cta_group::2{{.*}}multicast::cluster.b64
// CHECK-NOT:  tcgen05.mma
// CHECK:      tt.return
