// RUN: not remora opt %s -p nobody 2>&1 | filecheck %s --check-prefix NOBODY
// RUN: not remora opt %s -p '%passes:Annotate' 2>&1 | filecheck %s --check-prefix ARGUMENT
// RUN: not remora opt %s -p '%passes:Unfinished' 2>&1 | filecheck %s --check-prefix INVALID
// RUN: not remora opt %s.gone 2>&1 | filecheck %s --check-prefix GONE

module {
  tt.func public @kernel(%p: !tt.ptr<f32>) {
    %0 = tt.load %p : !tt.ptr<f32>
    tt.return
  }
}

// NOBODY: error: no plugin has a pass 'nobody'
// NOBODY: way out: {{.*}}package.module:Class

// ARGUMENT: error: the arguments of '{{.*}}passes.py:Annotate' do not fit: annotate requires argument "op"
// ARGUMENT: way out: it takes op: str, note: str = seen, level:

// INVALID: error: the pass left invalid IR: MLIR refuses the module:
// INVALID-NEXT: failures.mlir:8:10: block with no terminator
// INVALID-NEXT: where: pass unfinished ({{.*}}), remora opt {{.*}}failures.mlir, kernel kernel
// INVALID-NEXT: way out: to see it again: remora opt {{.*}}before.mlir -p {{.*}}passes.py:Unfinished

// GONE: error: the file cannot be read: {{.*}}No such file
