// The devices of libtorch by the numbers of tch.
#pragma once
#include <c10/core/Device.h>

inline c10::Device device_of_number(int32_t number) {
  if (number == -2) return c10::Device(c10::kMPS, 0);
  return number < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number));
}
