// Images of kernels on a device, without linking the driver's library.
#pragma once
#include <cstddef>
#include <string>

namespace kfusion::cuda {

class Function {
 public:
  const void* kernel = nullptr;     ///< as the runtime's functions take kernels, for one device
  std::size_t parameter_bytes = 0;  ///< of its one parameter; 0 where the runtime does not say it (before CUDA 12.4)
  bool waits = false;               ///< compiled for 9.0 and more: waits for earlier kernels where its text says so
};

/// The kernel `entry` of an image (a cubin, or PTX) on `device`, which must be current: its code is there, and it may
/// use all the shared memory of a block and all the blocks of a cluster that the device has. Never unloaded. Works
/// while a graph is being captured. Throws DeviceError.
Function load(const std::string& image, const std::string& entry, int device);

}  // namespace kfusion::cuda
