// Cluster launch control: Triton's barriers, PTX for the rest.

// RUN: remora opt %s -p remora.dsl.lowering:LowerOperations | filecheck %s

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
  tt.func private @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'int64', 'num': 1, 'shape': (2,)}:->i64"() -> i64
  tt.func private @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(i64, i32) -> i64
  tt.func private @"remora:tlx.clc_issue@remora.tlx.launch_control::{'several': False}:i64,i64->"(i64, i64)
  tt.func private @"remora:tlx.clc_query@remora.tlx.launch_control:v:{'axis': 1}:i64->i32"(i64) -> i32

  tt.func public @words(%i: i32) -> i32 {
    %b = tt.call @"remora:tlx.alloc_barriers@remora.tlx.barriers:h:{'arrive_count': 1, 'dtype': 'int64', 'num': 1, 'shape': (1,)}:->i64"() : () -> i64
    %a = tt.call @"remora:tlx.local_alloc@remora.tlx.buffers:h:{'dtype': 'int64', 'num': 1, 'shape': (2,)}:->i64"() : () -> i64
    %full = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%b, %i) : (i64, i32) -> i64
    %answer = tt.call @"remora:tlx.local_view@remora.tlx.buffers:h:{}:i64,i32->i64"(%a, %i) : (i64, i32) -> i64
    tt.call @"remora:tlx.clc_issue@remora.tlx.launch_control::{'several': False}:i64,i64->"(%answer, %full) : (i64, i64) -> ()
    %y = tt.call @"remora:tlx.clc_query@remora.tlx.launch_control:v:{'axis': 1}:i64->i32"(%answer) : (i64) -> i32
    tt.return %y : i32
  }
}

// CHECK:      %[[A:.*]] = ttg.local_alloc : () -> !ttg.memdesc<1x2xi64
// CHECK:      %[[ANSWER:.*]] = ttg.memdesc_index %[[A]]
// CHECK:      builtin.unrealized_conversion_cast %[[ANSWER]]
// CHECK:      llvm.inline_asm has_side_effects {{.*}}elect.sync {{.*}}@once clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [$0], [$1];
// CHECK:      %[[Y:.*]] = llvm.inline_asm has_side_effects {{.*}}get_first_ctaid.v4.b32.b128 {_, $0, _, _}{{.*}} -> i32
// CHECK:      llvm.inline_asm has_side_effects {{.*}}fence.proxy.async.shared::cta;
// CHECK:      tt.return %[[Y]] : i32
