// A test's controls of the stand-in for the CUDA runtime. Exported from the shared object that
// holds it; tests find these by name.
#pragma once

#include <cstddef>

extern "C" {
// The call (cudaMalloc, ...) answers this error from now on. For cudaDriverGetVersion: the version.
void standin_fail(const char* call, int error);
// No call fails, no stream captures, nothing is counted, no memory is a GPU's.
void standin_reset();
// The stream captures a CUDA graph.
void standin_capture(void* stream);
// The host's memory at `data` counts as memory of GPU `ordinal`.
void standin_claim(const void* data, size_t bytes, int ordinal);
int standin_launches();
size_t standin_copied();  // bytes
// Streams, events and blocks of memory that were made and not given back.
size_t standin_alive();
// Kernels that the objects of nvcc registered.
size_t standin_kernels();
}
