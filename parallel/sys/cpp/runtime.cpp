// Settings of the library as a whole.
#include <ATen/Context.h>
#include <ATen/Version.h>

#include "guard.h"
#include "shim.h"

int shim_show_config(ShimSink sink, void *context) {
  return shim_guard([&] {
    std::string text = at::show_config();
    ShimValue value{SHIM_STRING, 0, 0.0, text.data(), text.size()};
    sink(context, &value);
  });
}

int shim_set_flush_denormal(bool flush, bool *supported) {
  return shim_guard([&] { *supported = at::globalContext().setFlushDenormal(flush); });
}
