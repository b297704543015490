// Tensors over memory that is not torch's.
#include <ATen/ops/from_blob.h>

#include "device.h"
#include "guard.h"
#include "shim.h"

int shim_from_blob(void *data, const int64_t *shape, const int64_t *strides, size_t dims, int32_t kind, int32_t device,
                   void *state, ShimDrop drop, at::Tensor **result) {
  return shim_guard([&] {
    // The maker owns the state from here on, and frees it where it throws. `at::from_blob` would not.
    at::TensorMaker maker = at::for_blob(data, at::IntArrayRef(shape, dims));
    maker.context(state, drop);
    // libtorch would ask the driver whose memory this is, and the driver may not know before memory is mapped.
    c10::Device target = device_of_number(device);
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(target);
    maker.strides(at::IntArrayRef(strides, dims)).options(options).target_device(target);
    *result = new at::Tensor(maker.make_tensor());
  });
}
