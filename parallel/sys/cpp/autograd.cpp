// Gradients with seeds, and nodes whose backward is a callback.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "guard.h"
#include "shim.h"

using torch::autograd::variable_list;

static variable_list list_of(at::Tensor *const *tensors, size_t count) {
  variable_list list;
  list.reserve(count);
  for (size_t i = 0; i < count; i++) list.push_back(tensors[i] ? *tensors[i] : at::Tensor());
  return list;
}

int shim_grad(at::Tensor *const *outputs, at::Tensor *const *seeds, size_t output_count, at::Tensor *const *inputs,
              size_t input_count, bool retain_graph, bool create_graph, bool allow_unused, at::Tensor **results) {
  return shim_guard([&] {
    auto grads = torch::autograd::grad(list_of(outputs, output_count), list_of(inputs, input_count),
                                       list_of(seeds, output_count), retain_graph, create_graph, allow_unused);
    for (size_t i = 0; i < input_count; i++) results[i] = grads[i].defined() ? new at::Tensor(grads[i]) : nullptr;
  });
}

namespace {

struct CallbackNode : public torch::autograd::Node {
  CallbackNode(void *state, ShimBackward backward, ShimDrop drop) : state(state), backward(backward), drop(drop) {}
  ~CallbackNode() override { drop(state); }
  std::string name() const override { return "CallbackNode"; }

  variable_list apply(variable_list &&grads) override {
    std::vector<at::Tensor *> given;
    for (at::Tensor &grad : grads) given.push_back(grad.defined() ? &grad : nullptr);
    std::vector<at::Tensor *> made(num_outputs(), nullptr);
    int failed = backward(state, given.data(), given.size(), made.data(), made.size());
    variable_list result;
    for (at::Tensor *grad : made) {
      result.push_back(grad ? *grad : at::Tensor());
      delete grad;
    }
    if (failed) throw std::runtime_error(shim_last_error());
    return result;
  }

  void *state;
  ShimBackward backward;
  ShimDrop drop;
};

}  // namespace

int shim_attach(at::Tensor *const *outputs, size_t output_count, at::Tensor *const *inputs, size_t input_count,
                void *state, ShimBackward backward, ShimDrop drop, at::Tensor **results) {
  return shim_guard([&] {
    auto node = std::shared_ptr<CallbackNode>(new CallbackNode(state, backward, drop), torch::autograd::deleteNode);
    variable_list sources = list_of(inputs, input_count);
    node->set_next_edges(torch::autograd::collect_next_edges(sources));
    for (size_t i = 0; i < output_count; i++) {
      at::Tensor output = outputs[i]->detach();
      torch::autograd::set_history(output, node);
      results[i] = new at::Tensor(output);
    }
  });
}

bool shim_grad_enabled(void) { return at::GradMode::is_enabled(); }
