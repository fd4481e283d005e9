// A native plugin without MLIR, for the tests: compiled by them, with -D for each form.
//
// The structs are those of triton/Tools/PluginUtils.h, in C. The passes and operations
// announce functions that do nothing.
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct pass { const char *name, *version; void (*add)(void *, void *); void (*register_)(void); };
struct dialect { const char *name, *version; void (*register_)(void *); };
struct op { const char *name; void (*add)(void *, void *); };
struct info {
  uint32_t api;
  const char *name, *version;
  struct pass *passes;
  size_t pass_count;
  struct dialect *dialects;
  size_t dialect_count;
  struct op *ops;
  size_t op_count;
  const char *release;
};

// A C++ exception, from C: std::__throw_length_error(char const *).
void _ZSt20__throw_length_errorPKc(const char *);

static void nothing(void) {}
static char endless[4096];
#ifdef THROWS
static void throws(void *manager, void *arguments) { _ZSt20__throw_length_errorPKc("too long"); }
#endif
static struct info info;

#ifndef API
#define API 2
#endif
#ifndef NAME
#define NAME "Plain"
#endif
#ifndef VERSION
#define VERSION "1.0"
#endif
#ifndef ENTRY // statements before the entry point's own
#define ENTRY
#endif
#ifndef LOAD // statements that run when the library is loaded
#define LOAD
#endif
#ifndef PASS
#define PASS {"plain_pass", "1.0", (void *)nothing, nothing}
#endif
#ifndef PASSES
#define PASSES passes
#endif
#ifndef PASS_COUNT
#define PASS_COUNT 1
#endif
#ifndef DIALECTS
#define DIALECTS NULL
#endif
#ifndef DIALECT_COUNT
#define DIALECT_COUNT 0
#endif
#ifndef OP
#define OP {"plain_op", (void *)nothing}
#endif
#ifndef OPS
#define OPS ops
#endif
#ifndef OP_COUNT
#define OP_COUNT 1
#endif
#ifndef REGISTER_ // what registers the dialect
#define REGISTER_ nothing
#endif
#ifndef SYMBOL
#define SYMBOL tritonGetPluginInfo
#endif

__attribute__((constructor)) static void load(void) { LOAD; }

// On a page of its own, with nothing after it.
static struct pass passes[] __attribute__((aligned(4096))) = {PASS};
static char after_passes[4096] __attribute__((aligned(4096)));
static struct op ops[] __attribute__((aligned(4096))) = {OP};
static struct dialect dialects[] __attribute__((aligned(4096))) = {{"plain", "1.0", (void *)REGISTER_}};

static struct info info = {API, NAME, VERSION, PASSES, PASS_COUNT, DIALECTS, DIALECT_COUNT,
                           OPS, OP_COUNT, RELEASE};

struct info *SYMBOL(void) {
  ENTRY;
  (void)after_passes, (void)dialects, (void)passes, (void)ops;
  return &info;
}
