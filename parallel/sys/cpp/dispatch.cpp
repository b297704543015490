// Any operation by name, through the dispatcher: opens what tch's generator leaves out (`_fused_adamw_`, `_foreach_*`, ...).
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "guard.h"
#include "shim.h"

static const at::Tensor &tensor_of(const void *pointer) { return *static_cast<const at::Tensor *>(pointer); }

// An empty list has no elements to tell its type by, and takes the one that is wanted.
static bool is_empty_list(const ShimValue &value) {
  bool list = value.tag == SHIM_TENSOR_LIST || value.tag == SHIM_INT_LIST || value.tag == SHIM_DOUBLE_LIST ||
              value.tag == SHIM_BOOL_LIST;
  return list && value.length == 0;
}

static c10::IValue to_ivalue(const ShimValue &value, const c10::TypePtr &wanted) {
  if (auto list = wanted->cast<c10::ListType>(); list && is_empty_list(value))
    return c10::impl::GenericList(list->getElementType());
  switch (value.tag) {
    case SHIM_NONE:
      return c10::IValue();
    case SHIM_TENSOR:
      return tensor_of(value.data);
    case SHIM_INT:
      return value.integer;
    case SHIM_DOUBLE:
      return value.real;
    case SHIM_BOOL:
      return value.integer != 0;
    case SHIM_STRING:
      return std::string(static_cast<const char *>(value.data), value.length);
    case SHIM_TENSOR_LIST: {
      c10::List<at::Tensor> list;
      list.reserve(value.length);
      auto tensors = static_cast<at::Tensor *const *>(value.data);
      for (size_t i = 0; i < value.length; i++) list.push_back(*tensors[i]);
      return list;
    }
    case SHIM_INT_LIST: {
      auto numbers = static_cast<const int64_t *>(value.data);
      return c10::List<int64_t>(at::ArrayRef<int64_t>(numbers, value.length));
    }
    case SHIM_DOUBLE_LIST: {
      auto numbers = static_cast<const double *>(value.data);
      return c10::List<double>(at::ArrayRef<double>(numbers, value.length));
    }
    case SHIM_BOOL_LIST: {
      c10::List<bool> list;
      auto flags = static_cast<const bool *>(value.data);
      for (size_t i = 0; i < value.length; i++) list.push_back(flags[i]);
      return list;
    }
  }
  throw std::runtime_error("unknown argument tag " + std::to_string(value.tag));
}

static void hand_out(const c10::IValue &value, ShimSink sink, void *context) {
  ShimValue out{SHIM_NONE, 0, 0.0, nullptr, 0};
  if (value.isTensor()) {
    out.tag = SHIM_TENSOR;
    out.data = new at::Tensor(value.toTensor());
  } else if (value.isInt()) {
    out.tag = SHIM_INT;
    out.integer = value.toInt();
  } else if (value.isDouble()) {
    out.tag = SHIM_DOUBLE;
    out.real = value.toDouble();
  } else if (value.isBool()) {
    out.tag = SHIM_BOOL;
    out.integer = value.toBool();
  } else if (value.isTensorList()) {
    for (const at::Tensor &tensor : value.toTensorVector()) hand_out(tensor, sink, context);
    return;
  } else if (!value.isNone()) {
    throw std::runtime_error("a result of kind " + value.tagKind() + " has no counterpart here");
  }
  sink(context, &out);
}

int shim_call(const char *name, const char *overload, const ShimValue *arguments, size_t count, ShimSink sink,
              void *context) {
  return shim_guard([&] {
    auto operation = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto &wanted = operation.schema().arguments();
    if (count > wanted.size())
      throw std::runtime_error(std::string(name) + " takes " + std::to_string(wanted.size()) + " arguments, got " +
                               std::to_string(count));
    torch::jit::Stack stack;
    stack.reserve(wanted.size());
    for (size_t i = 0; i < count; i++) stack.push_back(to_ivalue(arguments[i], wanted[i].type()));
    for (size_t i = count; i < wanted.size(); i++) {
      if (!wanted[i].default_value().has_value())
        throw std::runtime_error(std::string(name) + " needs the argument `" + wanted[i].name() + "`");
      stack.push_back(*wanted[i].default_value());
    }
    operation.callBoxed(&stack);
    for (const c10::IValue &result : stack) hand_out(result, sink, context);
  });
}
