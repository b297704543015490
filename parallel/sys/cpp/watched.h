// What an allocator of a device does that tells a caller of the memory that it takes.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <string>

#include "shim.h"

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

  // The memory as its own allocator made it.
  static const c10::DataPtr &inside(const c10::DataPtr &memory) {
    return memory.get_deleter() == &drop ? static_cast<Held *>(memory.get_context())->memory : memory;
  }
};

struct Watch {
  ShimAsk ask;
  ShimTell tell;

  c10::DataPtr allocate(c10::Allocator &inner, size_t bytes) const {
    if (bytes == 0) return inner.allocate(0);
    // Made without a backtrace, so that the message is the caller's text and no more.
    if (ask(bytes) != 0) throw c10::OutOfMemoryError(std::string(shim_last_error()));
    try {
      c10::DataPtr memory = inner.allocate(bytes);
      void *data = memory.get();
      c10::Device device = memory.device();
      return {data, new Held{std::move(memory), bytes, tell}, &Held::drop, device};
    } catch (...) {
      tell(bytes);
      throw;
    }
  }
};

// Watches the tensors of GPUs of NVIDIA. Throws if libtorch's library for them is not loaded.
void shim_watch_cuda(ShimAsk ask, ShimTell tell);
