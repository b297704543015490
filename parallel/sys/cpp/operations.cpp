// Counts the operations that a thread dispatches, with the ones that they dispatch in turn.
#include <map>
#include <string>

#include <ATen/record_function.h>

#include "guard.h"
#include "shim.h"

namespace {

thread_local std::map<std::string, int64_t> counts;
thread_local at::CallbackHandle handle = 0;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction &operation) {
  ++counts[operation.name()];
  return nullptr;
}

}  // namespace

int shim_operations_begin() {
  return shim_guard([] {
    counts.clear();
    handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  });
}

int shim_operations_end(ShimSink sink, void *context) {
  return shim_guard([&] {
    at::removeCallback(handle);
    for (const auto &[name, times] : counts) {
      ShimValue value{SHIM_STRING, times, 0.0, name.data(), name.size()};
      sink(context, &value);
    }
  });
}
