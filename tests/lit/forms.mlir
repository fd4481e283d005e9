// RUN: remora opt %s | filecheck %s
// RUN: remora opt %s --generic | filecheck %s --check-prefix GENERIC
// RUN: remora opt %s --generic --locations | filecheck %s --check-prefix LOC
// RUN: remora opt %s --generic | remora opt - | filecheck %s
// RUN: remora opt %s --generic --locations | remora opt - | filecheck %s

module {
  tt.func public @kernel(%p: !tt.ptr<f32>) {
    %0 = tt.load %p : !tt.ptr<f32>
    tt.store %p, %0 : !tt.ptr<f32>
    tt.return
  }
}

// CHECK:       module {
// CHECK-NEXT:    tt.func public @kernel(%arg0: !tt.ptr<f32>) {
// CHECK-NEXT:      %0 = tt.load %arg0 : !tt.ptr<f32>
// CHECK-NEXT:      tt.store %arg0, %0 : !tt.ptr<f32>
// CHECK-NEXT:      tt.return
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// GENERIC:       "builtin.module"() ({
// GENERIC-NEXT:    "tt.func"() <{function_type = (!tt.ptr<f32>) -> (), sym_name = "kernel", sym_visibility = "public"}> ({
// GENERIC-NEXT:    ^bb0(%arg0: !tt.ptr<f32>):
// GENERIC-NEXT:      %0 = "tt.load"(%arg0)
// GENERIC-NEXT:      "tt.store"(%arg0, %0)
// GENERIC-NEXT:      "tt.return"() : () -> ()
// GENERIC-NEXT:    }) : () -> ()
// GENERIC-NEXT:  }) : () -> ()

// LOC: "tt.load"{{.*}} loc("{{.*}}forms.mlir":9:10)
