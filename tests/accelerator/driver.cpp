// The memory interface of the accelerator: the functions of the CUDA driver that manage address space, physical
// memory, streams and copies, on host memory.
//
// A GPU runs behind the host. Kernels here are done when their call returns, so two rules stand in for that:
//
//   a copy waits in its stream until the host awaits it, asks for it the second time, or an operation uses memory
//   after stream 0 was told to wait for it; so whoever does not wait finds the old values, and whoever changes the
//   other end too early finds wrong ones;
//   memory that an operation has used may be unmapped, or copied by a stream, only after an event that was
//   recorded later on the stream of the operations (stream 0) was awaited, by the host or by that stream.
//
// A breach of the second rule, a copy to or from host memory that is not pinned or not pinned any more, and an
// operation on memory whose copy was not awaited end the process with a message. Memory that is not mapped cannot be
// read at all.
//
// ACCELERATOR_MEMORY=BYTES sets the size of the device, ACCELERATOR_GRANULARITY=BYTES that of a piece of memory. ACCELERATOR_TAKEN=FILE names a file with the number of bytes
// that other processes want: they take them, as far as they are free, when this process asks what is free, and has asked
// ACCELERATOR_TAKEN_AFTER times before.
#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600;

// A piece of physical memory, at this place of the memory file.
struct Physical {
  size_t offset, bytes;
};

struct Mapping {
  size_t bytes;
  // The number of the last operation that used it, and how many copies wait.
  long last_use, copies;
};

struct Stream {
  std::deque<std::function<void()>> waiting;
  long queued = 0, done = 0;
  // The operations up to this one are done when the next entry of the stream runs.
  long after_use = 0;
};

// What stream 0 waits for: each stream up to a position.
using Joined = std::map<Stream *, long>;

struct Event {
  Stream *stream = nullptr;
  long position = 0, after_use = 0;
  bool was_queried = false;
  // Of an event of stream 0.
  Joined joined;
};

std::recursive_mutex mutex;
int memory_file = -1;
size_t file_end = 0, taken = 0, pinned = 0;
DriverPeaks peaks{0, 0};
std::map<uintptr_t, Mapping> mappings;
std::map<uintptr_t, size_t> pinned_ranges;
// How many copies wait that start at each address of the host.
std::map<uintptr_t, long> host_copies;
Joined joined;
// The number of the last operation, and of the last one that the host knows to be done.
long last_use = 0, known_done = 0;

struct Lock {
  std::lock_guard<std::recursive_mutex> guard{mutex};
};

[[noreturn]] void breach(const char *what, const void *address) {
  std::fprintf(stderr, "accelerator: %s at %p\n", what, address);
  std::abort();
}

size_t number(const char *text, size_t otherwise) { return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10); }

size_t granularity() {
  static const size_t bytes = number(std::getenv("ACCELERATOR_GRANULARITY"), 64 << 10);
  return bytes;
}

size_t device_bytes() {
  static const size_t all = number(std::getenv("ACCELERATOR_MEMORY"), size_t{64} << 30);
  return all;
}

// The bytes of other processes.
size_t others = 0;

void let_others_take() {
  static const char *path = std::getenv("ACCELERATOR_TAKEN");
  static size_t asked = 0, first = number(std::getenv("ACCELERATOR_TAKEN_AFTER"), 0);
  if (asked++ < first) return;
  char text[32] = {0};
  FILE *file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return;
  if (std::fgets(text, sizeof text, file) != nullptr) others = std::min(number(text, 0), device_bytes() - taken);
  std::fclose(file);
}

Mapping *mapping_at(const void *pointer, const void **start = nullptr) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto found = mappings.upper_bound(address);
  if (found == mappings.begin()) return nullptr;
  --found;
  if (start != nullptr) *start = reinterpret_cast<const void *>(found->first);
  return address < found->first + found->second.bytes ? &found->second : nullptr;
}

void run_until(Stream *stream, long position) {
  while (stream != nullptr && stream->done < position) {
    std::function<void()> next = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    next();
    ++stream->done;
  }
}

void run_all(const Joined &positions) {
  for (auto [stream, position] : positions) run_until(stream, position);
}

int queue_copy(void *device, const void *host, size_t bytes, Stream *stream, bool is_to_device) {
  Lock lock;
  auto found = pinned_ranges.upper_bound(reinterpret_cast<uintptr_t>(host));
  bool is_pinned = found != pinned_ranges.begin() &&
                   reinterpret_cast<uintptr_t>(host) + bytes <= std::prev(found)->first + std::prev(found)->second;
  if (!is_pinned) breach("a copy of host memory that is not pinned", host);
  Mapping *mapping = mapping_at(device);
  if (mapping == nullptr) breach("a copy of memory that is not mapped", device);
  if (stream == nullptr) breach("a copy on the stream of the operations", device);
  if (stream->after_use < mapping->last_use && known_done < mapping->last_use)
    breach("a copy of memory that an operation may still use", device);
  auto host_address = reinterpret_cast<uintptr_t>(host);
  ++mapping->copies;
  ++host_copies[host_address];
  ++stream->queued;
  stream->waiting.push_back([=] {
    std::memcpy(is_to_device ? device : const_cast<void *>(host), is_to_device ? host : device, bytes);
    if (Mapping *there = mapping_at(device)) --there->copies;
    if (--host_copies[host_address] == 0) host_copies.erase(host_address);
  });
  return kSuccess;
}

}  // namespace

DriverPeaks driver_peaks() { return peaks; }

bool driver_take_bytes(size_t bytes) {
  Lock lock;
  if (taken + bytes + others > device_bytes()) return false;
  taken += bytes;
  if (taken > peaks.device_bytes) peaks.device_bytes = taken;
  return true;
}

void driver_give_back_bytes(size_t bytes) {
  Lock lock;
  taken -= bytes;
}

void driver_note_use(const void *address) {
  Lock lock;
  Mapping *mapping = mapping_at(address);
  if (mapping == nullptr) return;
  run_all(joined);
  joined.clear();
  if (mapping->copies > 0) breach("an operation on memory whose copy was not awaited", address);
  mapping->last_use = ++last_use;
}

extern "C" {

struct Location {
  int type, id;
};

int cuInit(unsigned) { return kSuccess; }

int cuDeviceGet(int *device, int) {
  *device = 0;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void **context, int) {
  *context = &mutex;
  return kSuccess;
}

int cuCtxSetCurrent(void *) { return kSuccess; }

int cuGetErrorString(int code, const char **text) {
  *text = code == kOutOfMemory ? "out of memory" : "an error of the accelerator";
  return kSuccess;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  Lock lock;
  let_others_take();
  *total = device_bytes();
  *free_bytes = device_bytes() - others - taken;
  return kSuccess;
}

int cuMemGetAllocationGranularity(size_t *bytes, const void *, int) {
  *bytes = granularity();
  return kSuccess;
}

int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t, unsigned long long) {
  if (bytes == 0 || bytes % granularity() != 0) return kInvalidValue;
  size_t all = bytes + alignment;
  void *start = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return kOutOfMemory;
  auto first = reinterpret_cast<uintptr_t>(start);
  *address = alignment == 0 ? first : (first + alignment - 1) / alignment * alignment;
  return kSuccess;
}

int cuMemAddressFree(uintptr_t address, size_t bytes) {
  Lock lock;
  if (auto found = mappings.lower_bound(address); found != mappings.end() && found->first < address + bytes)
    breach("address space that is freed while memory is mapped", reinterpret_cast<void *>(address));
  munmap(reinterpret_cast<void *>(address), bytes);
  return kSuccess;
}

int cuMemCreate(uintptr_t *handle, size_t bytes, const void *, unsigned long long) {
  Lock lock;
  if (bytes == 0 || bytes % granularity() != 0) return kInvalidValue;
  if (!driver_take_bytes(bytes)) return kOutOfMemory;
  if (memory_file < 0) memory_file = memfd_create("accelerator", MFD_CLOEXEC);
  auto *physical = new Physical{file_end, bytes};
  file_end += bytes;
  if (ftruncate(memory_file, static_cast<off_t>(file_end)) != 0) return kOutOfMemory;
  *handle = reinterpret_cast<uintptr_t>(physical);
  return kSuccess;
}

int cuMemRelease(uintptr_t handle) {
  Lock lock;
  auto *physical = reinterpret_cast<Physical *>(handle);
  fallocate(memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(physical->offset),
            static_cast<off_t>(physical->bytes));
  driver_give_back_bytes(physical->bytes);
  delete physical;
  return kSuccess;
}

int cuMemMap(uintptr_t address, size_t bytes, size_t, uintptr_t handle, unsigned long long) {
  Lock lock;
  auto *physical = reinterpret_cast<Physical *>(handle);
  if (physical->bytes != bytes || mapping_at(reinterpret_cast<void *>(address)) != nullptr) return kInvalidValue;
  void *mapped = mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory_file,
                      static_cast<off_t>(physical->offset));
  if (mapped == MAP_FAILED) return kOutOfMemory;
  // What the memory holds is undefined, and no test may pass because it happens to be zeros.
  mprotect(mapped, bytes, PROT_READ | PROT_WRITE);
  std::memset(mapped, 0xcd, bytes);
  mprotect(mapped, bytes, PROT_NONE);
  mappings[address] = Mapping{bytes, 0, 0};
  return kSuccess;
}

int cuMemSetAccess(uintptr_t address, size_t bytes, const void *, size_t) {
  return mprotect(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE) == 0 ? kSuccess : kInvalidValue;
}

int cuMemUnmap(uintptr_t address, size_t bytes) {
  Lock lock;
  auto found = mappings.find(address);
  if (found == mappings.end() || found->second.bytes != bytes) return kInvalidValue;
  auto *pointer = reinterpret_cast<void *>(address);
  if (found->second.last_use > known_done) breach("memory that is unmapped while an operation may still use it", pointer);
  if (found->second.copies > 0) breach("memory that is unmapped while it is copied", pointer);
  mmap(pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  mappings.erase(found);
  return kSuccess;
}

int cuMemHostRegister_v2(void *start, size_t bytes, unsigned) {
  Lock lock;
  pinned_ranges[reinterpret_cast<uintptr_t>(start)] = bytes;
  pinned += bytes;
  if (pinned > peaks.pinned_bytes) peaks.pinned_bytes = pinned;
  return kSuccess;
}

int cuMemHostUnregister(void *start) {
  Lock lock;
  auto found = pinned_ranges.find(reinterpret_cast<uintptr_t>(start));
  if (found == pinned_ranges.end()) return kInvalidValue;
  auto copy = host_copies.lower_bound(found->first);
  if (copy != host_copies.end() && copy->first < found->first + found->second)
    breach("memory of the host that is unpinned while it is copied", start);
  pinned -= found->second;
  pinned_ranges.erase(found);
  return kSuccess;
}

int cuStreamCreate(Stream **stream, unsigned) {
  *stream = new Stream;
  return kSuccess;
}

int cuStreamDestroy_v2(Stream *stream) {
  Lock lock;
  run_until(stream, stream->queued);
  delete stream;
  return kSuccess;
}

int cuEventCreate(Event **event, unsigned) {
  *event = new Event;
  return kSuccess;
}

int cuEventDestroy_v2(Event *event) {
  delete event;
  return kSuccess;
}

int cuEventRecord(Event *event, Stream *stream) {
  Lock lock;
  if (stream == nullptr) {
    *event = Event{nullptr, 0, last_use, false, joined};
  } else {
    *event = Event{stream, stream->queued, stream->after_use, false, {}};
  }
  return kSuccess;
}

int cuEventSynchronize(Event *event) {
  Lock lock;
  run_until(event->stream, event->position);
  run_all(event->joined);
  if (event->after_use > known_done) known_done = event->after_use;
  return kSuccess;
}

int cuEventQuery(Event *event) {
  Lock lock;
  if (!event->was_queried) {
    event->was_queried = true;
    return kNotReady;
  }
  return cuEventSynchronize(event);
}

int cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
  Lock lock;
  if (stream == nullptr) {
    if (event->stream != nullptr) joined[event->stream] = std::max(joined[event->stream], event->position);
    return kSuccess;
  }
  run_until(event->stream, event->position);
  run_all(event->joined);
  if (event->after_use > stream->after_use) stream->after_use = event->after_use;
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t bytes, Stream *stream) {
  return queue_copy(reinterpret_cast<void *>(device), host, bytes, stream, true);
}

int cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t bytes, Stream *stream) {
  return queue_copy(reinterpret_cast<void *>(device), host, bytes, stream, false);
}

int cuMemsetD8Async(uintptr_t device, unsigned char value, size_t bytes, Stream *stream) {
  Lock lock;
  if (stream != nullptr) return kInvalidValue;
  driver_note_use(reinterpret_cast<void *>(device));
  std::memset(reinterpret_cast<void *>(device), value, bytes);
  return kSuccess;
}
}
