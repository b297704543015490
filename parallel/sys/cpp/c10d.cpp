// Rendezvous over TCP and collectives over Gloo, from libtorch's c10d.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <stdexcept>

#include "guard.h"
#include "shim.h"

using std::chrono::milliseconds;

// The recorder of past collectives is one for all groups of a process and is not safe when several threads use groups of their own.
// Set before main, while there is one thread.
[[maybe_unused]] static const int recorder_is_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

// A value whose tag is wrong: a stranger wrote it, or a rank with another secret.
struct Forged : std::runtime_error {
  explicit Forged(const std::string &key)
      : std::runtime_error("the value of `" + key + "` at the store was not written by a rank of this job") {}
};

// A store that believes no value without its tag. Everything that this program and Gloo read from a store
// goes through `get`.
class SealedStore : public c10d::Store {
 public:
  SealedStore(c10::intrusive_ptr<c10d::TCPStore> store, ShimSigner seal)
      : store_(std::move(store)), seal_(seal) {}
  ~SealedStore() override { seal_.drop(seal_.state); }

  void set(const std::string &key, const std::vector<uint8_t> &value) override {
    std::vector<uint8_t> sealed(SHIM_TAG);
    seal_.tag(seal_.state, key.data(), key.size(), value.data(), value.size(), sealed.data());
    sealed.insert(sealed.end(), value.begin(), value.end());
    store_->set(key, sealed);
  }

  std::vector<uint8_t> get(const std::string &key) override {
    const std::vector<uint8_t> sealed = store_->get(key);
    if (sealed.size() < SHIM_TAG) throw Forged(key);
    std::vector<uint8_t> value(sealed.begin() + SHIM_TAG, sealed.end());
    uint8_t tag[SHIM_TAG], difference = 0;
    seal_.tag(seal_.state, key.data(), key.size(), value.data(), value.size(), tag);
    // All bytes are compared, so that the time tells nothing about the right ones.
    for (size_t i = 0; i < SHIM_TAG; ++i) difference |= tag[i] ^ sealed[i];
    if (difference != 0) throw Forged(key);
    return value;
  }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  bool check(const std::vector<std::string> &keys) override { return store_->check(keys); }
  void wait(const std::vector<std::string> &keys) override { store_->wait(keys, getTimeout()); }
  void wait(const std::vector<std::string> &keys, const milliseconds &timeout) override {
    store_->wait(keys, timeout);
  }
  bool hasExtendedApi() const override { return false; }
  uint16_t port() const { return store_->getPort(); }

  // A number that the server adds up has no tag.
  int64_t add(const std::string &, int64_t) override {
    throw std::logic_error("a sealed store does not add");
  }
  bool deleteKey(const std::string &key) override { return store_->deleteKey(key); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  ShimSigner seal_;
};

struct ShimStore {
  c10::intrusive_ptr<SealedStore> store;
};

struct ShimGroup {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

struct ShimWork {
  c10::intrusive_ptr<c10d::Work> work;
};

int shim_store_open(const char *host, uint16_t port, int listener, int64_t timeout_ms, ShimSigner seal,
                    ShimStore **store) {
  c10::intrusive_ptr<c10d::TCPStore> opened;
  int code = shim_guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listener >= 0;
    if (options.isServer) options.masterListenFd = listener;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    opened = c10::make_intrusive<c10d::TCPStore>(host, options);
  });
  if (code != 0) {
    seal.drop(seal.state);
    return code;
  }
  *store = new ShimStore{c10::make_intrusive<SealedStore>(std::move(opened), seal)};
  return 0;
}

uint16_t shim_store_port(const ShimStore *store) { return store->store->port(); }

int shim_store_set(ShimStore *store, const char *key, const uint8_t *bytes, size_t length) {
  return shim_guard([&] { store->store->set(key, std::vector<uint8_t>(bytes, bytes + length)); });
}

int shim_store_get(ShimStore *store, const char *key, int64_t timeout_ms, ShimSink sink, void *context) {
  bool forged = false;
  int code = shim_guard([&] {
    store->store->wait({key}, milliseconds(timeout_ms));
    std::vector<uint8_t> bytes;
    try {
      bytes = store->store->get(key);
    } catch (const Forged &) {
      forged = true;
      throw;
    }
    ShimValue value{};
    value.tag = SHIM_STRING;
    value.data = bytes.data();
    value.length = bytes.size();
    sink(context, &value);
  });
  return forged ? 2 : code;
}

int shim_store_has(ShimStore *store, const char *key, bool *there) {
  return shim_guard([&] { *there = store->store->check({key}); });
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
