// The C face of what libtorch has and tch lacks. Every function returns 0, or 1 with the reason in `shim_last_error`.
// Nothing but `at::Tensor *` and plain numbers crosses this line, and no C++ exception does.
#pragma once
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

extern "C" {

// The text of the last failure on this thread; valid until the next failing call on this thread.
const char *shim_last_error();

// One argument of, or result from, a dispatched operation.
enum ShimTag : int32_t {
  SHIM_NONE = 0,
  SHIM_TENSOR = 1,
  SHIM_INT = 2,
  SHIM_DOUBLE = 3,
  SHIM_BOOL = 4,
  SHIM_STRING = 5,
  SHIM_TENSOR_LIST = 6,
  SHIM_INT_LIST = 7,
  SHIM_DOUBLE_LIST = 8,
  SHIM_BOOL_LIST = 9,
};
struct ShimValue {
  int32_t tag;
  int64_t integer;       // SHIM_INT, SHIM_BOOL
  double real;           // SHIM_DOUBLE
  const void *data;      // SHIM_TENSOR: at::Tensor *; lists: array; SHIM_STRING: UTF-8 bytes
  size_t length;         // lists and strings
};

// Calls `name.overload`. `sink` receives each result in order; tensors handed to it are owned by the receiver.
typedef void (*ShimSink)(void *context, const ShimValue *value);
int shim_call(const char *name, const char *overload, const ShimValue *arguments, size_t count, ShimSink sink,
              void *context);

// Between the two calls, the operations of this thread are counted. `sink` receives for each name a SHIM_STRING with the count
// as `integer`.
int shim_operations_begin();
int shim_operations_end(ShimSink sink, void *context);

// d(sum_i <outputs_i, seeds_i>) / d(inputs). `results[i]` is owned by the caller, or null where the input was not used.
int shim_grad(at::Tensor *const *outputs, at::Tensor *const *seeds, size_t output_count, at::Tensor *const *inputs,
              size_t input_count, bool retain_graph, bool create_graph, bool allow_unused, at::Tensor **results);

// An autograd node whose backward is the caller's. The callback fills `input_grads` (owned tensors, or null for no gradient) and returns 0,
// or returns 1 after `shim_fail`. `drop` frees `state`, once.
typedef int (*ShimBackward)(void *state, at::Tensor *const *output_grads, size_t output_count,
                            at::Tensor **input_grads, size_t input_count);
typedef void (*ShimDrop)(void *state);
int shim_attach(at::Tensor *const *outputs, size_t output_count, at::Tensor *const *inputs, size_t input_count,
                void *state, ShimBackward backward, ShimDrop drop, at::Tensor **results);

// Whether operations on this thread make a graph.
bool shim_grad_enabled(void);

// Leaves a message for `shim_last_error`: for callbacks.
void shim_fail(const char *message);

// Ranks meet at a store: a table of bytes that one of them serves over TCP. Whoever reaches its port can
// write there, so every value is written with a tag that only the ranks of the job can make, and read if the
// tag is right. `tag` writes the SHIM_TAG bytes of a key and a value; `drop` frees `state`, once.
enum : size_t { SHIM_TAG = 32 };
struct ShimSigner {
  void *state;
  void (*tag)(const void *state, const char *key, size_t key_length, const uint8_t *bytes, size_t length,
              uint8_t *tag);
  ShimDrop drop;
};
struct ShimStore;
// Serves a store on the bound socket `listener`, which it takes over, or connects to the one at `host` where
// `listener` is below 0.
int shim_store_open(const char *host, uint16_t port, int listener, int64_t timeout_ms, ShimSigner seal,
                    ShimStore **store);
uint16_t shim_store_port(const ShimStore *store);
int shim_store_set(ShimStore *store, const char *key, const uint8_t *bytes, size_t length);
// Waits for the key. Returns 2 where the tag of its value is wrong.
int shim_store_get(ShimStore *store, const char *key, int64_t timeout_ms, ShimSink sink, void *context);
// Whether there is a value, by whomever.
int shim_store_has(ShimStore *store, const char *key, bool *there);
void shim_store_close(ShimStore *store);

// Collectives over Gloo. Each starts and leaves a `work` to wait for; tensors are contiguous, on the CPU, and kept alive by the work.
struct ShimGroup;
struct ShimWork;
enum ShimReduction : int32_t { SHIM_SUM = 0, SHIM_MAX = 1, SHIM_MIN = 2 };
int shim_gloo_open(ShimStore *store, const char *name, const char *interface, int rank, int size, int64_t timeout_ms,
                   ShimGroup **group);
void shim_gloo_close(ShimGroup *group);
int shim_all_reduce(ShimGroup *group, at::Tensor *tensor, int32_t op, ShimWork **work);
int shim_all_gather(ShimGroup *group, at::Tensor *output, at::Tensor *input, ShimWork **work);
int shim_all_to_all(ShimGroup *group, at::Tensor *output, at::Tensor *input, const int64_t *output_counts,
                    const int64_t *input_counts, size_t count, ShimWork **work);
int shim_broadcast(ShimGroup *group, at::Tensor *tensor, int root, ShimWork **work);
int shim_barrier(ShimGroup *group, ShimWork **work);
int shim_work_wait(ShimWork *work);
int shim_work_is_done(ShimWork *work, bool *done);
void shim_work_free(ShimWork *work);

// Queues of a GPU beside the one on which torch computes. `shim_stream_open` makes `device` the thread's, and takes one from torch's
// pool. `shim_stream_wait_current` lets it wait for all that torch has queued so far and gives its CUDA handle; `shim_stream_record_event` leaves an
// event behind what was queued on it, `shim_event_block` lets torch's queue, not the caller, wait for that, and `shim_event_query` says whether it is done.
struct ShimStream;
struct ShimEvent;
int shim_stream_open(int device, ShimStream **stream);
int shim_stream_wait_current(ShimStream *stream, void **handle);
int shim_stream_record_event(ShimStream *stream, ShimEvent **event);
void shim_stream_close(ShimStream *stream);
int shim_event_block(ShimEvent *event);
int shim_event_query(ShimEvent *event, bool *done);
void shim_event_free(ShimEvent *event);

// "Build settings" as libtorch prints them. `sink` receives one SHIM_STRING.
int shim_show_config(ShimSink sink, void *context);
// Whether denormal numbers are flushed to zero on this thread from now on.
int shim_set_flush_denormal(bool flush, bool *supported);
// Whether scaled_dot_product_attention may use cuDNN.
int shim_set_cudnn_attention(bool use_cudnn);

// A tensor over memory of the caller, with a storage of its own that cannot be resized. `kind` is an at::ScalarType, the strides count
// elements, and `device` is the number that tch has for a device. `drop` frees `state`, once: with the storage, or at once where this
// fails.
int shim_from_blob(void *data, const int64_t *shape, const int64_t *strides, size_t dims, int32_t kind, int32_t device, void *state,
                   ShimDrop drop, at::Tensor **result);
// The memory of CPU tensors made from now on. `take` returns so many bytes, which are more than 0, aligned to 64,
// or null after `shim_fail`: then the operation fails with an OutOfMemoryError of that message. `give_back` frees
// what `take` returned. Both are called on any thread until the process ends.
typedef void *(*ShimTake)(size_t bytes);
int shim_set_cpu_allocator(ShimTake take, ShimDrop give_back);
// Asks the caller before libtorch takes memory of a device other than the CPU for a tensor, and tells the caller when the tensor is gone.
// `ask` returns 0, or anything else after `shim_fail`: then the operation fails with an OutOfMemoryError of that message.
typedef int (*ShimAsk)(size_t bytes);
typedef void (*ShimTell)(size_t bytes);
int shim_watch_device_allocator(int32_t device, ShimAsk ask, ShimTell tell);
// The bytes that libtorch's allocator of a device has taken from the driver, for live tensors and for those to come. Leaves `bytes` as it
// is for a device whose allocator keeps nothing.
int shim_device_reserved_bytes(int32_t device, size_t *bytes);
// Gives memory back to the driver that libtorch's allocator of a device keeps for tensors to come.
int shim_device_empty_cache(int32_t device);
}
