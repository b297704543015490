// Tells the caller of the memory that libtorch takes for tensors on GPUs of NVIDIA. They come from an allocator that CUDA keeps in a
// variable of its own, whose class has many more functions than c10::Allocator: all but those about tensors are passed on.
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <stdexcept>

#include "guard.h"
#include "shim.h"
#include "watched.h"

namespace c10::cuda {
// In a library that is loaded where there is a GPU. The class below replaces the functions that call it.
__attribute__((weak)) void c10_cuda_check_implementation(const int32_t, const char *, const char *, const uint32_t, const bool);
}  // namespace c10::cuda

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;

class WatchedCudaAllocator final : public CUDAAllocator {
 public:
  WatchedCudaAllocator(CUDAAllocator *inner, ShimAsk ask, ShimTell tell) : inner_(inner), watch_{ask, tell} {}

  DataPtr allocate(size_t bytes) override { return watch_.allocate(*inner_, bytes); }

  // libtorch's allocator knows its memory by the function that frees it.
  void recordStream(const DataPtr &memory, CUDAStream stream) override { inner_->recordStream(Held::inside(memory), stream); }
  void recordStream(const DataPtr &memory, c10::Stream stream) override { inner_->recordStream(Held::inside(memory), stream); }

  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  bool is_simple_data_ptr(const DataPtr &memory) const override { return inner_->is_simple_data_ptr(memory); }
  void copy_data(void *to, const void *from, size_t bytes) const override { inner_->copy_data(to, from, bytes); }

  bool initialized() override { return inner_->initialized(); }
  void emptyCache(MempoolId_t pool) override { inner_->emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return inner_->getDeviceStats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { inner_->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { inner_->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return inner_->getMemoryInfo(device); }

  void *raw_alloc(size_t bytes) override { return inner_->raw_alloc(bytes); }
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override { return inner_->raw_alloc_with_stream(bytes, stream); }
  void raw_delete(void *memory) override { inner_->raw_delete(memory); }
  void init(int devices) override { inner_->init(devices); }
  double getMemoryFraction(DeviceIndex device) override { return inner_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { inner_->setMemoryFraction(fraction, device); }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return inner_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { inner_->enable(value); }
  bool isEnabled() const override { return inner_->isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t *largest) override { inner_->cacheInfo(device, largest); }
  void *getBaseAllocation(void *memory, size_t *bytes) override { return inner_->getBaseAllocation(memory, bytes); }
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return inner_->snapshot(pool, traces); }

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    inner_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { inner_->endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { inner_->releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return inner_->getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    inner_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override { inner_->setUseOnOOM(device, pool, use); }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { inner_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void *> &live) override {
    return inner_->checkPoolLiveAllocations(device, pool, live);
  }

  ShareableHandle shareIpcHandle(void *memory) override { return inner_->shareIpcHandle(memory); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return inner_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return inner_->isHistoryEnabled(); }
  void recordHistory(bool enabled, CreateContextFn context, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skipped) override {
    inner_->recordHistory(enabled, context, most, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &data) override { inner_->recordAnnotation(data); }
  void pushCompileContext(std::string &context) override { inner_->pushCompileContext(context); }
  void popCompileContext() override { inner_->popCompileContext(); }
  void setUserMetadata(const std::string &data) override { inner_->setUserMetadata(data); }
  std::string getUserMetadata() override { return inner_->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override { inner_->attachOutOfMemoryObserver(std::move(observer)); }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override { inner_->attachAllocatorTraceTracker(std::move(tracker)); }

  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override { inner_->enablePeerAccess(device, other); }
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peers) override {
    return inner_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return inner_->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    return inner_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return inner_->name(); }

 private:
  CUDAAllocator *inner_;
  Watch watch_;
};

}  // namespace

void shim_watch_cuda(ShimAsk ask, ShimTell tell) {
  // `c10::cuda::CUDACachingAllocator::allocator`, in the library that `load_cuda` has loaded.
  void *symbol = dlsym(RTLD_DEFAULT, "_ZN3c104cuda20CUDACachingAllocator9allocatorE");
  if (symbol == nullptr) throw std::runtime_error("libtorch for GPUs is not loaded");
  auto *current = static_cast<std::atomic<CUDAAllocator *> *>(symbol);
  // Never freed: storages keep the pointer.
  auto *watched = new WatchedCudaAllocator(current->load(), ask, tell);
  current->store(watched);
  c10::SetAllocator(c10::kCUDA, watched, UINT8_MAX);
}
