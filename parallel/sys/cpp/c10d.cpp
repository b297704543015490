// Rendezvous over TCP and collectives over Gloo, from libtorch's c10d.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "guard.h"
#include "shim.h"

using std::chrono::milliseconds;

// The recorder of past collectives is one for all groups of a process and is not safe when several threads use groups of their own.
// Set before main, while there is one thread.
[[maybe_unused]] static const int recorder_is_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

struct ShimStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct ShimGroup {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

struct ShimWork {
  c10::intrusive_ptr<c10d::Work> work;
};

int shim_store_open(const char *host, uint16_t port, bool serves, int64_t timeout_ms, ShimStore **store) {
  return shim_guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serves;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    *store = new ShimStore{c10::make_intrusive<c10d::TCPStore>(host, options)};
  });
}

uint16_t shim_store_port(const ShimStore *store) { return store->store->getPort(); }

int shim_store_set(ShimStore *store, const char *key, const uint8_t *bytes, size_t length) {
  return shim_guard([&] { store->store->set(key, std::vector<uint8_t>(bytes, bytes + length)); });
}

int shim_store_get(ShimStore *store, const char *key, int64_t timeout_ms, ShimSink sink, void *context) {
  return shim_guard([&] {
    store->store->wait({key}, milliseconds(timeout_ms));
    std::vector<uint8_t> bytes = store->store->get(key);
    ShimValue value{};
    value.tag = SHIM_STRING;
    value.data = bytes.data();
    value.length = bytes.size();
    sink(context, &value);
  });
}

int shim_store_has(ShimStore *store, const char *key, bool *there) {
  return shim_guard([&] { *there = store->store->check({key}); });
}

int shim_store_add(ShimStore *store, const char *key, int64_t amount, int64_t *sum) {
  return shim_guard([&] { *sum = store->store->add(key, amount); });
}

void shim_store_close(ShimStore *store) { delete store; }

int shim_gloo_open(ShimStore *store, const char *name, const char *interface, int rank, int size, int64_t timeout_ms,
                   ShimGroup **group) {
  return shim_guard([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    std::string chosen(interface);
    options->devices.push_back(chosen.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                                              : c10d::ProcessGroupGloo::createDeviceForInterface(chosen));
    auto named = c10::make_intrusive<c10d::PrefixStore>(name, store->store);
    *group = new ShimGroup{c10::make_intrusive<c10d::ProcessGroupGloo>(named, rank, size, options)};
  });
}

void shim_gloo_close(ShimGroup *group) { delete group; }

static c10d::ReduceOp reduction(int32_t op) {
  switch (op) {
    case SHIM_SUM: return c10d::ReduceOp(c10d::ReduceOp::SUM);
    case SHIM_MAX: return c10d::ReduceOp(c10d::ReduceOp::MAX);
    default: return c10d::ReduceOp(c10d::ReduceOp::MIN);
  }
}

template <class Start>
static int started(ShimWork **work, Start start) {
  return shim_guard([&] { *work = new ShimWork{start()}; });
}

int shim_all_reduce(ShimGroup *group, at::Tensor *tensor, int32_t op, ShimWork **work) {
  return started(work, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = reduction(op);
    return group->group->allreduce(tensors, options);
  });
}

int shim_all_gather(ShimGroup *group, at::Tensor *output, at::Tensor *input, ShimWork **work) {
  return started(work, [&] { return group->group->_allgather_base(*output, *input); });
}

int shim_all_to_all(ShimGroup *group, at::Tensor *output, at::Tensor *input, const int64_t *output_counts,
                    const int64_t *input_counts, size_t count, ShimWork **work) {
  return started(work, [&] {
    std::vector<int64_t> received(output_counts, output_counts + count), sent(input_counts, input_counts + count);
    return group->group->alltoall_base(*output, *input, received, sent);
  });
}

int shim_broadcast(ShimGroup *group, at::Tensor *tensor, int root, ShimWork **work) {
  return started(work, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group->group->broadcast(tensors, options);
  });
}

int shim_barrier(ShimGroup *group, ShimWork **work) {
  return started(work, [&] { return group->group->barrier(); });
}

int shim_work_wait(ShimWork *work) {
  return shim_guard([&] { work->work->wait(); });
}

int shim_work_is_done(ShimWork *work, bool *done) {
  return shim_guard([&] { *done = work->work->isCompleted(); });
}

void shim_work_free(ShimWork *work) { delete work; }
