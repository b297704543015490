// Declarations that libtorch's c10d headers include and its wheel leaves out; the code is in libtorch_cpu.so.
#pragma once
#define GLOO_VERSION_MAJOR 0
