// A pass in C++. This one says what functions a module holds; put yours in its place.
#include "triton/Dialect/Triton/IR/Dialect.h"
#include "triton/Tools/PluginUtils.h"

extern "C" {
#include "plugin.h"
}

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassRegistry.h"

#include <memory>
#include <string>
#include <vector>

// plugin.h says the same as the headers of the Triton that this is built for.
static_assert(TRITON_PLUGIN_API_VERSION == 2);
static_assert(sizeof(plugin_info) == sizeof(mlir::triton::plugin::PluginInfo));
static_assert(sizeof(pass_info) == sizeof(mlir::triton::plugin::PassInfo));

namespace {

struct SayFunctions : mlir::PassWrapper<SayFunctions, mlir::OperationPass<mlir::ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SayFunctions)

  llvm::StringRef getArgument() const override { return "@NAME@-say-functions"; }

  void runOnOperation() override {
    getOperation().walk([](mlir::triton::FuncOp f) { f.emitRemark("a function"); });
  }
};

void add(void *manager, const void *) {
  static_cast<mlir::PassManager *>(manager)->addPass(std::make_unique<SayFunctions>());
}

void registerPass() { mlir::PassRegistration<SayFunctions>(); }

} // namespace

extern "C" const pass_info @NAME@_passes[] = {
    {"say_functions", "0.1.0", add, registerPass},
};
extern "C" const size_t @NAME@_num_passes = 1;
