// Settings of the library as a whole.
#include <ATen/Context.h>
#include <ATen/Version.h>

#include <cstdlib>

#include "guard.h"
#include "shim.h"

// oneDNN keeps what it has compiled for each shape of matrix, by default for 1024 shapes of up to 1.5 MiB, and libtorch caches the same a
// second time. Rows of different lengths rarely repeat a shape, so a run in bf16 would grow by more than a GiB. A step has some 20 shapes:
// with 64, no time is lost. The second cache is not needed, but must have an entry. Set before main, while there is one thread; values
// that the user has set stay.
[[maybe_unused]] static const int onednn_keeps_little = setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64", 0);
[[maybe_unused]] static const int libtorch_keeps_nothing = setenv("LRU_CACHE_CAPACITY", "1", 0);

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

int shim_set_cudnn_attention(bool use_cudnn) {
  return shim_guard([&] { at::globalContext().setSDPUseCuDNN(use_cudnn); });
}
