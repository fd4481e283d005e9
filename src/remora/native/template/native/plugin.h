// What a plugin announces: the structs of triton/Tools/PluginUtils.h (version 2), in C.
#ifndef @NAME@_PLUGIN_H
#define @NAME@_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

struct pass_info {
  const char *name, *version;
  void (*add)(void *manager, const void *arguments); // mlir::PassManager *, std::vector<std::string>
  void (*register_pass)(void);
};
struct dialect_info {
  const char *name, *version;
  void (*register_dialect)(void *registry); // mlir::DialectRegistry *
};
struct op_info {
  const char *name;
  void (*add)(void *builder, void *operands); // TritonOpBuilder &, std::vector<mlir::Value> &
};
struct plugin_info {
  uint32_t api_version;
  const char *name, *version;
  const struct pass_info *passes;
  size_t num_passes;
  const struct dialect_info *dialects;
  size_t num_dialects;
  const struct op_info *ops;
  size_t num_ops;
  const char *triton_version;
};

#endif
