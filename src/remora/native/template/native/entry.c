// The entry point: Triton, and Remora before it, ask it what the library brings.
#include "plugin.h"

#ifdef WITH_PASSES
extern const struct pass_info @NAME@_passes[];
extern const size_t @NAME@_num_passes;
#endif

__attribute__((visibility("default"))) struct plugin_info *tritonGetPluginInfo(void) {
  static struct plugin_info info = {
      .api_version = 2,
      .name = "@NAME@",
      .version = "0.1.0",
      .triton_version = TRITON_RELEASE, // of the Triton that it is built for
  };
#ifdef WITH_PASSES
  info.passes = @NAME@_passes;
  info.num_passes = @NAME@_num_passes;
#endif
  return &info;
}
