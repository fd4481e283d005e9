// Masks: constant in the loop in which they are true, or false, as a whole.

// RUN: remora opt %s -p '%split{min_body=0}' | filecheck %s

module {
  // The last iteration of a K loop. 63 < K - 64 k, that is k < (K - 64) / 64 + 1 = K / 64.
  // CHECK-LABEL: @remainder
  tt.func public @remainder(%p: tensor<64x!tt.ptr<f16>>, %K: i32) {
    %zero = arith.constant dense<0.0> : tensor<64xf16>
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c63 = arith.constant 63 : i32
    %c64 = arith.constant 64 : i32
    %at = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %up = arith.addi %K, %c63 : i32
    %n = arith.divsi %up, %c64 : i32
    // CHECK:      [[K:%.*]] = arith.extsi %arg1 : i32 to i64
    // CHECK:      [[WHOLE:%.*]] = arith.shrsi [[K]], %c6_i64 : i64
    // CHECK:      scf.for [[I:%.*]] = %c0_i32 to [[END:%.*]] step %c1_i32
    // CHECK-NOT:    arith.cmpi
    // CHECK:        arith.constant dense<true> : tensor<64xi1>
    // CHECK:      scf.for [[I:%.*]] = [[END]] to %{{[0-9]+}} step %c1_i32
    // CHECK:        arith.cmpi slt
    // CHECK-NOT:  scf.for
    scf.for %k = %c0 to %n step %c1 : i32 {
      %done = arith.muli %k, %c64 : i32
      %left = arith.subi %K, %done : i32
      %bound = tt.splat %left : i32 -> tensor<64xi32>
      %mask = arith.cmpi slt, %at, %bound : tensor<64xi32>
      %x = tt.load %p, %mask, %zero : tensor<64x!tt.ptr<f16>>
      tt.store %p, %x : tensor<64x!tt.ptr<f16>>
    }
    tt.return
  }

  // The causal mask: true as a whole until start_n + 63 reaches the first row.
  // CHECK-LABEL: @causal
  tt.func public @causal(%s: tensor<128x64xf32>, %p: tensor<128x64x!tt.ptr<f32>>) {
    %minf = arith.constant dense<0xFF800000> : tensor<128x64xf32>
    %c0 = arith.constant 0 : i32
    %c64 = arith.constant 64 : i32
    %c128 = arith.constant 128 : i32
    %pid = tt.get_program_id x : i32
    %row = arith.muli %pid, %c128 : i32
    %next = arith.addi %row, %c128 : i32
    %lane = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %row.t = tt.splat %row : i32 -> tensor<128xi32>
    %rows = arith.addi %row.t, %lane : tensor<128xi32>
    %rows.1 = tt.expand_dims %rows {axis = 1 : i32} : tensor<128xi32> -> tensor<128x1xi32>
    %rows.2 = tt.broadcast %rows.1 : tensor<128x1xi32> -> tensor<128x64xi32>
    %offs = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    // CHECK:      scf.for [[I:%.*]] = %c0_i32 to [[END:%.*]] step %c64_i32
    // CHECK-NOT:    arith.cmpi
    // CHECK:        arith.constant dense<true> : tensor<128x64xi1>
    // CHECK:      scf.for
    // CHECK:        arith.cmpi sge
    scf.for %n = %c0 to %next step %c64 : i32 {
      %n.t = tt.splat %n : i32 -> tensor<64xi32>
      %cols = arith.addi %n.t, %offs : tensor<64xi32>
      %cols.1 = tt.expand_dims %cols {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
      %cols.2 = tt.broadcast %cols.1 : tensor<1x64xi32> -> tensor<128x64xi32>
      %mask = arith.cmpi sge, %rows.2, %cols.2 : tensor<128x64xi32>
      %x = arith.select %mask, %s, %minf : tensor<128x64xi1>, tensor<128x64xf32>
      tt.store %p, %x : tensor<128x64x!tt.ptr<f32>>
    }
    tt.return
  }

  // A mask that hides where it is true: false as a whole in the second loop.
  // CHECK-LABEL: @window
  tt.func public @window(%s: tensor<64xf32>, %p: tensor<64x!tt.ptr<f32>>, %n: i32, %low: i32) {
    %minf = arith.constant dense<0xFF800000> : tensor<64xf32>
    %c0 = arith.constant 0 : i32
    %c64 = arith.constant 64 : i32
    %offs = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %low.t = tt.splat %low : i32 -> tensor<64xi32>
    // CHECK:      scf.for
    // CHECK:        arith.cmpi slt
    // CHECK:      scf.for
    // CHECK-NOT:    arith.cmpi
    // CHECK:        arith.constant dense<false> : tensor<64xi1>
    // CHECK:      tt.return
    scf.for %i = %c0 to %n step %c64 : i32 {
      %i.t = tt.splat %i : i32 -> tensor<64xi32>
      %at = arith.addi %i.t, %offs : tensor<64xi32>
      %hidden = arith.cmpi slt, %at, %low.t : tensor<64xi32>
      %x = arith.select %hidden, %minf, %s : tensor<64xi1>, tensor<64xf32>
      tt.store %p, %x : tensor<64x!tt.ptr<f32>>
    }
    tt.return
  }
}
