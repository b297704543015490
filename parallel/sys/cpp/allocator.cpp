// Lets libtorch take the memory of its CPU tensors from two functions of the caller, and tells the caller of the memory that it takes on
// another device.
#include <stdexcept>

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "guard.h"
#include "shim.h"
#include "watched.h"

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

// An allocator that keeps no freed memory is never asked about it.
class WatchedAllocator final : public c10::DeviceAllocator {
 public:
  WatchedAllocator(c10::Allocator *inner, ShimAsk ask, ShimTell tell)
      : inner_(inner), caching_(dynamic_cast<c10::DeviceAllocator *>(inner)), watch_{ask, tell} {}

  c10::DataPtr allocate(size_t bytes) override { return watch_.allocate(*inner_, bytes); }

  void copy_data(void *to, const void *from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

  bool initialized() override { return caching_ != nullptr && caching_->initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { caching_->emptyCache(pool); }
  void recordStream(const c10::DataPtr &memory, c10::Stream stream) override { caching_->recordStream(Held::inside(memory), stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return caching_->getDeviceStats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { caching_->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { caching_->resetPeakStats(device); }

 private:
  c10::Allocator *inner_;
  c10::DeviceAllocator *caching_;
  Watch watch_;
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
    if (type == c10::kCUDA) return shim_watch_cuda(ask, tell);
    // Never freed, as above.
    auto *allocator = new WatchedAllocator(c10::GetAllocator(type), ask, tell);
    c10::SetAllocator(type, allocator, UINT8_MAX);
    if (c10::GetAllocator(type) != allocator) {
      throw std::runtime_error("libtorch keeps the allocator that it has for this device");
    }
  });
}

int shim_device_reserved_bytes(int32_t device, size_t *bytes) {
  return shim_guard([&] {
    c10::Device place = device_of_number(device);
    auto *allocator = dynamic_cast<c10::DeviceAllocator *>(c10::GetAllocator(place.type()));
    if (allocator == nullptr || !allocator->initialized()) return;
    auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<size_t>(allocator->getDeviceStats(place.index()).reserved_bytes[total].current);
  });
}

int shim_device_empty_cache(int32_t device) {
  return shim_guard([&] {
    auto *allocator = dynamic_cast<c10::DeviceAllocator *>(c10::GetAllocator(device_of_number(device).type()));
    if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
  });
}
