// Memory by the kind of place where it is: what runs and arrays ask of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kfusion/view.hpp"

namespace kfusion {

/// What orders work on a device: a cudaStream_t, 0 and 1 the legacy default stream. Hosts have none: 0.
using Stream = std::uintptr_t;

/// The functions of the memories of one kind, whose places are numbered. What takes a stream is done in its order; on
/// a host it is done when the function returns.
struct Memory {
  bool has_streams;
  std::size_t vector_bytes;  ///< addresses of which multiple let kernels load whole vectors; 1: they do not ask

  /// Throws DeviceError where a place cannot be used.
  void (*require)(int index);
  /// Contents undefined; nullptr for no bytes. Throws std::bad_alloc (a host) and DeviceError.
  void* (*allocate)(std::size_t bytes, int index, Stream stream);
  void (*deallocate)(void* p, std::size_t bytes, int index, Stream stream);  ///< `stream`: on which it was used
  /// An array's, on any thread, also when the process ends. `exported`: others may still use it on streams of theirs.
  void (*deallocate_array)(void* p, std::size_t bytes, int index, bool exported);
  /// Gives memory that is kept for reuse back to the system, where that keeps others from allocating; returns the
  /// bytes.
  std::size_t (*give_back)();

  /// Copies between this place and the host, or inside it.
  void (*copy)(void* to, const void* from, std::size_t bytes, int index, Stream stream);
  void (*fill)(void* p, std::size_t bytes, int index, Stream stream, int value);
  /// Work that is given to `waiter` from now on starts after all that is now on `on`.
  void (*wait)(Stream waiter, Stream on, int index);
  void (*synchronize)(int index, Stream stream);
};

extern const Memory host_memory;  // backends/cpu
extern const Memory cuda_memory;  // backends/cuda

inline const Memory& memory_of(Place p) { return p.on_host() ? host_memory : cuda_memory; }

}  // namespace kfusion
