// Stock passes by name, with what their bindings take, beside Python passes.

// RUN: remora opt %s -p 'common.cse,%passes:DropStores' | filecheck %s --check-prefix CSE
// RUN: remora opt %s -p 'convert_to_ttgpuir("cuda:90", 4, 32, 1),ttgpuir.coalesce' --verify-each | filecheck %s --check-prefix LAYOUT
// RUN: remora opt %s -p 'cse,symbol_dce' --print-after-all 2>&1 | filecheck %s --check-prefix EACH
// RUN: not remora opt %s -p 'convert_to_ttgpuir("cuda:90", 4)' 2>&1 | filecheck %s --check-prefix WRONG
// RUN: not remora opt %s -p 'ttgpuir.coalesce' 2>&1 | filecheck %s --check-prefix FAILED

module {
  tt.func public @kernel(%p: !tt.ptr<f32>) {
    %0 = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %1 = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %2 = tt.load %0 : tensor<64x!tt.ptr<f32>>
    tt.store %1, %2 : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}

// CSE:       %0 = tt.splat
// CSE-NEXT:  %1 = tt.load %0
// CSE-NEXT:  tt.return

// LAYOUT: #blocked = #ttg.blocked
// LAYOUT: "ttg.num-warps" = 4
// LAYOUT: tt.load {{.*}} : tensor<64x!tt.ptr<f32>, #blocked>

// EACH: // after stock pass cse
// EACH: tt.splat
// EACH: // after stock pass symbol_dce
// EACH: module {

// WRONG: error: the stock pass 'convert_to_ttgpuir' does not take these arguments
// WRONG: where: convert_to_ttgpuir("cuda:90", 4)
// WRONG: way out: it takes str, int, int, int

// FAILED: error: stock passes failed: {{.*}}number of warps
// FAILED: where: the stock pass ttgpuir.coalesce; to see it again: remora opt {{.*}}before.mlir -p ttgpuir.coalesce
