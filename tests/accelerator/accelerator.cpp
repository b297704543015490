// An accelerator on host memory, for tests of device placement without a GPU.
//
// This library registers a second device with libtorch, under the device type MPS (a device type that libtorch
// on Linux does not implement). Tensors of the device live in host memory, and the kernels of the CPU compute on
// them, so results can be compared with those of the CPU bit for bit. As on a GPU,
//
//   an operation whose tensors are on different devices fails (0-dimensional CPU tensors excepted);
//   the backward pass runs on a thread of the device;
//   a copy between host and device is a call of its own, and is counted.
//
// driver.cpp adds the interface of the driver for memory: address space, physical memory, copies on streams.
//
// With ACCELERATOR_CACHES set, the memory of freed tensors stays with the allocator, as that of a GPU does, until it is asked to
// give it back, or needs it for a tensor of another size.
//
// Load it with LD_PRELOAD, before libtorch is used. With ACCELERATOR_REPORT=FILE, the counts are written to FILE
// as one line of JSON when the process exits.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "driver.h"

namespace {

constexpr c10::DeviceType kDevice = c10::DeviceType::MPS;

c10::Device device() { return {kDevice, 0}; }

// ---- counts

struct Counts {
  std::atomic<long> to_device{0}, to_host{0}, to_device_bytes{0}, to_host_bytes{0}, scalar_reads{0};

  ~Counts() {
    const char *path = std::getenv("ACCELERATOR_REPORT");
    if (path == nullptr) return;
    if (FILE *file = std::fopen(path, "a")) {
      DriverPeaks peaks = driver_peaks();
      std::fprintf(file,
                   "{\"to_device\": %ld, \"to_host\": %ld, \"to_device_bytes\": %ld, \"to_host_bytes\": %ld, "
                   "\"scalar_reads\": %ld, \"device_peak_bytes\": %zu, \"pinned_peak_bytes\": %zu}\n",
                   to_device.load(), to_host.load(), to_device_bytes.load(), to_host_bytes.load(),
                   scalar_reads.load(), peaks.device_bytes, peaks.pinned_bytes);
      std::fclose(file);
    }
  }
} counts;

// Set while a kernel of the CPU stands in for one of the device: the copies that this takes are not counted.
thread_local int in_fallback = 0;

struct FallbackScope {
  FallbackScope() { ++in_fallback; }
  ~FallbackScope() { --in_fallback; }
};

// ---- memory, guard and hooks

// A tensor's memory begins with its size, so that it can be given back.
constexpr size_t kHeader = 64;

// The memory of freed tensors by its size, and the bytes of it and of live tensors.
struct Cache {
  bool is_used = std::getenv("ACCELERATOR_CACHES") != nullptr;
  std::mutex mutex;
  std::map<size_t, std::vector<char *>> free;
  size_t reserved = 0;

  char *take(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    auto &starts = free[bytes];
    if (starts.empty()) return nullptr;
    char *start = starts.back();
    starts.pop_back();
    return start;
  }

  bool reserve(size_t bytes) {
    if (!driver_take_bytes(bytes)) {
      empty();
      if (!driver_take_bytes(bytes)) return false;
    }
    std::lock_guard<std::mutex> guard(mutex);
    reserved += bytes;
    return true;
  }

  void give_back(char *start, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    if (is_used) {
      free[bytes].push_back(start);
    } else {
      drop(start, bytes);
    }
  }

  void empty() {
    std::lock_guard<std::mutex> guard(mutex);
    for (auto &[bytes, starts] : free)
      for (char *start : starts) drop(start, bytes);
    free.clear();
  }

 private:
  void drop(char *start, size_t bytes) {
    reserved -= bytes;
    driver_give_back_bytes(bytes);
    std::free(start);
  }
};

// Never freed: tensors go after everything else.
Cache &cache() {
  static Cache *cache = new Cache;
  return *cache;
}

void free_memory(void *pointer) {
  if (pointer == nullptr) return;
  char *start = static_cast<char *>(pointer) - kHeader;
  cache().give_back(start, *reinterpret_cast<size_t *>(start));
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_memory, device()};
    size_t rounded = (bytes + 63) / 64 * 64;
    if (char *start = cache().take(rounded)) return {start + kHeader, start + kHeader, &free_memory, device()};
    TORCH_CHECK(cache().reserve(rounded), "accelerator: out of memory: ", bytes, " bytes");
    char *start = static_cast<char *>(std::aligned_alloc(64, kHeader + rounded));
    TORCH_CHECK(start != nullptr, "accelerator: the host is out of memory: ", bytes, " bytes");
    *reinterpret_cast<size_t *>(start) = rounded;
    return {start + kHeader, start + kHeader, &free_memory, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { cache().empty(); }
  void recordStream(const c10::DataPtr &, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard<std::mutex> guard(cache().mutex);
    stats.reserved_bytes[0].current = static_cast<int64_t>(cache().reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
} memory;

c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kDevice;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // Everything is finished when its call returns, so events have nothing to wait for.
  void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  void destroyEvent(void *, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream &) const override { return true; }
  void synchronizeStream(const c10::Stream &) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

// libtorch finds the hooks of the device type by this class name.
struct MPSHooks final : at::MPSHooksInterface {
  explicit MPSHooks(at::MPSHooksArgs) {}
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  void deviceSynchronize() const override {}
  const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Allocator *getMPSDeviceAllocator() const override { return &memory; }
};

// ---- kernels on the memory of the device

// The same memory, as a tensor of the CPU.
at::Tensor on_host(const at::Tensor &tensor) {
  if (tensor.device().is_cpu()) return tensor;
  driver_note_use(tensor.data_ptr());
  auto options = tensor.options().device(c10::kCPU);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor](void *) {}, options);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DispatchKeySet keys(c10::DispatchKey::MPS);
  return at::detail::empty_generic(size, c10::GetAllocator(kDevice), keys, at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  c10::DispatchKeySet keys(c10::DispatchKey::MPS);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kDevice), keys, at::dtype_or_default(dtype));
}

void count_copy(const at::Tensor &from, const at::Tensor &to) {
  if (in_fallback > 0 || from.device() == to.device() || from.numel() == 0) return;
  bool is_to_device = from.device().is_cpu();
  (is_to_device ? counts.to_device : counts.to_host) += 1;
  (is_to_device ? counts.to_device_bytes : counts.to_host_bytes) += static_cast<long>(from.nbytes());
}

at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool) {
  count_copy(source, self);
  on_host(self).copy_(on_host(source));
  return self;
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &target, bool) {
  count_copy(self, target);
  on_host(target).copy_(on_host(self));
  return target;
}

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto *implementation = self.unsafeGetTensorImpl();
  implementation->set_sizes_contiguous(size);
  size_t bytes = self.storage_offset() * self.itemsize() + implementation->numel() * self.itemsize();
  auto &storage = implementation->unsafe_storage();
  if (bytes > storage.nbytes()) {
    c10::DataPtr grown = c10::GetAllocator(kDevice)->allocate(bytes);
    if (storage.nbytes() > 0) std::memcpy(grown.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
  if (format.has_value() && *format != at::MemoryFormat::Preserve) implementation->empty_tensor_restride(*format);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &target) {
  if (target.sizes() != self.sizes()) resize_(target, self.sizes(), std::nullopt);
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor &self) {
  if (in_fallback == 0) counts.scalar_reads += 1;
  return at::_local_scalar_dense(on_host(self));
}

at::Tensor scaled_dot_product_attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                                        const std::optional<at::Tensor> &mask, double dropout, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa) {
  for (const at::Tensor &tensor : {query, key, value}) driver_note_use(tensor.data_ptr());
  at::Tensor k = key, v = value;
  if (enable_gqa && query.size(-3) != key.size(-3)) {
    int64_t group = query.size(-3) / key.size(-3);
    k = key.repeat_interleave(group, -3);
    v = value.repeat_interleave(group, -3);
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query, k, v, dropout, is_causal, mask, scale));
}

// ---- every other operation: the kernel of the CPU, once all arguments are on the device

void check_placement(const c10::OperatorHandle &op, const at::Tensor &tensor) {
  if (tensor.defined() && tensor.device().type() == kDevice && tensor.numel() > 0) driver_note_use(tensor.data_ptr());
  if (!tensor.defined() || tensor.device().type() == kDevice || tensor.dim() == 0) return;
  TORCH_CHECK(false, "accelerator: ", op.schema().operator_name(), ": a tensor of shape ", tensor.sizes(),
              " is on ", tensor.device(), ", and others are on the accelerator");
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  size_t count = op.schema().arguments().size();
  for (const c10::IValue &argument : torch::jit::last(*stack, count)) {
    if (argument.isTensor()) {
      check_placement(op, argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor &tensor : argument.toTensorVector()) check_placement(op, tensor);
    } else if (argument.isOptionalTensorList()) {
      for (const std::optional<at::Tensor> &tensor : argument.toOptionalTensorVector())
        if (tensor.has_value()) check_placement(op, *tensor);
    }
  }
  FallbackScope scope;
  at::native::cpu_fallback(op, stack);
}

struct Registered {
  Registered() { c10::SetAllocator(kDevice, &memory); }
} registered;

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(MPS, Guard)
}

namespace at {
REGISTER_MPS_HOOKS(MPSHooks)
}

TORCH_LIBRARY_IMPL(_, MPS, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize_);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, library) {
  library.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}
