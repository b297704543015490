// Declarations that libtorch's headers for CUDA include and its wheel leaves out: what these headers mention, with the numbers of CUDA.
// Nothing of it is called here; weak, since the library that has the functions is loaded only where there is a GPU.
#pragma once
#include <cstddef>

typedef struct CUstream_st *cudaStream_t;
typedef enum cudaError { cudaSuccess = 0 } cudaError_t;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };

extern "C" {
#pragma GCC visibility push(default)
__attribute__((weak)) cudaError_t cudaGetLastError();
__attribute__((weak)) const char *cudaGetErrorString(cudaError_t);
__attribute__((weak)) cudaError_t cudaMemGetInfo(size_t *, size_t *);
__attribute__((weak)) cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
__attribute__((weak)) cudaError_t cudaStreamSynchronize(cudaStream_t);
__attribute__((weak)) cudaError_t cudaStreamGetPriority(cudaStream_t, int *);
__attribute__((weak)) cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *);
__attribute__((weak)) cudaError_t cudaDeviceGetStreamPriorityRange(int *, int *);
__attribute__((weak)) cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *);
#pragma GCC visibility pop
}
