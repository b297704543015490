// Lets MKL choose its kernels by what the processor can do.
//
// MKL, which does the matrix products of libtorch, asks for the maker of the processor first: any but Intel's gets AVX2
// kernels, at less than half the speed of the AVX-512 kernels on a processor that has the instructions (an AMD Zen 5 core
// made 116 Gflop/s of fp32 products instead of 250). The question is a function that libtorch_cpu.so exports and calls
// through its procedure table, so that the answer of the program goes before its own. After it MKL still looks at
// the feature flags of the processor, and takes no instruction that is not there.

extern "C" __attribute__((visibility("default"), used)) int mkl_serv_intel_cpu_true() { return 1; }
