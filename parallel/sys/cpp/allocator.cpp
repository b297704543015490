// Lets libtorch take the memory of its CPU tensors from two functions of the caller, and tells the caller of the memory that it takes on
// another device.
#include <stdexcept>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "device.h"
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

// The memory of a tensor of a device.
struct Held {
  c10::DataPtr memory;
  size_t bytes;
  ShimTell tell;

  static void drop(void *held) {
    auto *self = static_cast<Held *>(held);
    size_t bytes = self->bytes;
    ShimTell tell = self->tell;
    delete self;
    tell(bytes);
  }
};

class WatchedAllocator final : public c10::Allocator {
 public:
  WatchedAllocator(c10::Allocator *inner, ShimAsk ask, ShimTell tell) : inner_(inner), ask_(ask), tell_(tell) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_->allocate(0);
    if (ask_(bytes) != 0) throw c10::OutOfMemoryError(std::string(shim_last_error()));
    try {
      c10::DataPtr memory = inner_->allocate(bytes);
      void *data = memory.get();
      c10::Device device = memory.device();
      return {data, new Held{std::move(memory), bytes, tell_}, &Held::drop, device};
    } catch (...) {
      tell_(bytes);
      throw;
    }
  }

  void copy_data(void *to, const void *from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

 private:
  c10::Allocator *inner_;
  ShimAsk ask_;
  ShimTell tell_;
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

int shim_watch_device_allocator(int32_t device, ShimAsk ask, ShimTell tell) {
  return shim_guard([&] {
    c10::DeviceType type = device_of_number(device).type();
    // Never freed, as above.
    auto *allocator = new WatchedAllocator(c10::GetAllocator(type), ask, tell);
    c10::SetAllocator(type, allocator, UINT8_MAX);
    if (c10::GetAllocator(type) != allocator) {
      throw std::runtime_error("libtorch keeps the allocator that it has for this device");
    }
  });
}
