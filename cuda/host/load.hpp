// Images of kernels on a device, without linking the driver's library.
#pragma once
#include <string>

namespace kfusion::cuda {

/// The kernel `entry` of an image (a cubin, or PTX) as the runtime's functions take kernels, also on the current device
/// alone: its code is there when this returns. Never unloaded. Throws DeviceError.
const void* load_kernel(const std::string& image, const std::string& entry);

}  // namespace kfusion::cuda
