// A product is waited for right after it, besides the author's wait; others use what was waited for.

// RUN: remora opt %s -p remora.tlx.lower.in_flight:WaitForEachProduct | filecheck %s

#acc = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#nv = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: tt.func public @product
  // CHECK: %[[D:.*]] = ttng.warp_group_dot %{{.*}}, %{{.*}}, %{{.*}} {isAsync = true}
  // CHECK-NEXT: %[[W:.*]] = ttng.warp_group_dot_wait %[[D]] {pendings = 0 : i32}
  // CHECK-NEXT: %[[AUTHOR:.*]] = ttng.warp_group_dot_wait %[[W]] {pendings = 1 : i32}
  // CHECK-NEXT: tt.return %[[AUTHOR]]
  tt.func public @product(%a: !ttg.memdesc<64x64xf16, #nv, #smem>, %c: tensor<64x64xf32, #acc>) -> tensor<64x64xf32, #acc> {
    %d = ttng.warp_group_dot %a, %a, %c {isAsync = true} : !ttg.memdesc<64x64xf16, #nv, #smem> * !ttg.memdesc<64x64xf16, #nv, #smem> -> tensor<64x64xf32, #acc>
    %w = ttng.warp_group_dot_wait %d {pendings = 1 : i32} : tensor<64x64xf32, #acc>
    tt.return %w : tensor<64x64xf32, #acc>
  }
}
