// RUN: remora opt %s -p '%passes:Annotate{op="tt.load"}' | filecheck %s --check-prefix ONE
// RUN: remora opt %s -p '%passes:Annotate{op="tt.load" note="a, b" level=3},%passes:DropStores' | filecheck %s --check-prefix TWO

module {
  tt.func public @kernel(%p: !tt.ptr<f32>) {
    %0 = tt.load %p : !tt.ptr<f32>
    tt.store %p, %0 : !tt.ptr<f32>
    tt.return
  }
}

// ONE:       tt.func public @kernel(%arg0: !tt.ptr<f32>) {
// ONE-NEXT:    %0 = tt.load %arg0 {note = "seen"} : !tt.ptr<f32>
// ONE-NEXT:    tt.store %arg0, %0 : !tt.ptr<f32>
// ONE-NEXT:    tt.return
// ONE-NEXT:  }

// TWO:       tt.func public @kernel(%arg0: !tt.ptr<f32>) {
// TWO-NEXT:    %0 = tt.load %arg0 {level = 3 : i32, note = "a, b"} : !tt.ptr<f32>
// TWO-NEXT:    tt.return
// TWO-NEXT:  }
