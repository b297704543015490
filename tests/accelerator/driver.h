// What the kernels of the accelerator tell its driver. The driver's own interface is that of CUDA.
#pragma once
#include <cstddef>

struct DriverPeaks {
  size_t device_bytes, pinned_bytes;
};

// The most memory that tensors and mapped physical memory took at once, and the most pinned memory of the host.
DriverPeaks driver_peaks();

// Takes memory of the device for a tensor; false if there is not so much left.
bool driver_take_bytes(size_t bytes);
void driver_give_back_bytes(size_t bytes);

// Notes that an operation uses the memory at this address. Ends the process if the memory is not there yet.
void driver_note_use(const void *address);
