// Lets libtorch take the memory of its CPU tensors from two functions of the caller.
#include <stdexcept>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "guard.h"
#include "shim.h"

namespace {

class CallerAllocator final : public c10::Allocator {
 public:
  CallerAllocator(ShimTake take, ShimDrop give_back) : take_(take), give_back_(give_back) {}

  c10::DataPtr allocate(size_t bytes) override {
    void *data = bytes == 0 ? nullptr : take_(bytes);
    if (data == nullptr && bytes != 0) {
      // Made without a backtrace, so that the message is the caller's text and no more.
      throw c10::OutOfMemoryError(std::string(shim_last_error()));
    }
    return {data, data, give_back_, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return give_back_; }

  void copy_data(void *to, const void *from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  ShimTake take_;
  ShimDrop give_back_;
};

}  // namespace

int shim_set_cpu_allocator(ShimTake take, ShimDrop give_back) {
  return shim_guard([&] {
    // Never freed: libtorch and every storage keep the pointer.
    auto *allocator = new CallerAllocator(take, give_back);
    c10::SetCPUAllocator(allocator, UINT8_MAX);
    if (c10::GetCPUAllocator() != allocator) {
      throw std::runtime_error("libtorch keeps the CPU allocator that it has");
    }
  });
}
