// The module's own target decides whose dialects are loaded; --target goes before it.

// RUN: remora opt %s -p '%passes:Annotate{op="ttg.convert_layout"}' | filecheck %s
// RUN: remora opt %s --target hip:gfx942 | filecheck %s --check-prefix AMD
// RUN: not remora opt %s --target hip:nine 2>&1 | filecheck %s --check-prefix NONE

#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#wide = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
  tt.func public @kernel(%first: i1, %x: tensor<1024xf32, #blocked>) {
    amdg.cond_barrier %first
    %0 = ttg.convert_layout %x : tensor<1024xf32, #blocked> -> tensor<1024xf32, #wide>
    tt.return
  }
}

// CHECK:      amdg.cond_barrier %arg0
// CHECK-NEXT: %0 = ttg.convert_layout %arg1 {note = "seen"} : tensor<1024xf32, #blocked> -> tensor<1024xf32, #blocked1>

// AMD: amdg.cond_barrier %arg0
// NONE: error: 'hip:nine' is not a target
