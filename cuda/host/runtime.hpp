// What the files of this folder share: checked calls, the current device, and facts about devices that do not change.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "host/cuda.hpp"

namespace kfusion::cuda {

/// Devices that one process can use (the runtime's own limit is lower).
inline constexpr int kMaxDevices = 64;

/// Throws a DeviceError "kfusion: <what> failed: <CUDA's sentence>" and clears the runtime's last error.
void check(cudaError_t status, const char* what);

/// Makes `device` current after require(device), and the caller's device again at the end of the scope.
class UseDevice {
 public:
  explicit UseDevice(int device);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  int previous_ = 0, device_;
};

/// While some thread of this process captures a graph, the runtime refuses what could enter the graph and does not: to
/// load code, to set up a pool. In this scope it does not ask. It still refuses, and breaks the capture, where all of
/// the device or the legacy default stream is waited for.
class DuringCapture {
 public:
  DuringCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "pausing a capture's checks"); }
  ~DuringCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Whether CUDA must not be called any more: the process ends, or it is a forked child of one that had used CUDA. What
/// memory it has goes with the process.
bool is_over() noexcept;

inline cudaStream_t handle(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

int attribute(cudaDeviceAttr which, int device);

struct Limits {
  int multiprocessors = 0;
  bool clusters = false;       ///< thread-block clusters can be launched
  bool early_kernels = false;  ///< kernels can start before earlier ones have ended, also in graphs
  int shared_bytes = 0;        ///< that a block can have
  std::int64_t l2_bytes = 0;
};
/// Queried once per device.
const Limits& limits(int device);

/// Some kernel of this build: if it has no image for a device, none has. Defined in timing.cu.
const void* any_kernel();

}  // namespace kfusion::cuda
