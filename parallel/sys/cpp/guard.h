// Turns C++ exceptions into a return code and a message.
#pragma once
#include <exception>
#include <string>

void shim_remember(const std::string &message);

template <class Body>
int shim_guard(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception &error) {
    shim_remember(error.what());
  } catch (...) {
    shim_remember("an exception that is not a std::exception");
  }
  return 1;
}
