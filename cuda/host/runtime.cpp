// Which devices can be used, and what to tell the user where none can.
#include "host/runtime.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "cpu/platform.hpp"

namespace kfusion::cuda {
namespace {

std::atomic<bool> used{false};         // a call that initialises CUDA has been made by us
std::atomic<bool> child{false};        // this process was forked
std::atomic<bool> doomed{false};       // ... after we had used CUDA
std::atomic<bool> ending{false};       // this process is: the driver may be gone any time
std::atomic<std::uint64_t> usable{0};  // bit d: require(d) has succeeded

void after_fork_in_child() {
  child = true;
  doomed = doomed || used;
  usable = 0;
}
[[maybe_unused]] const bool watching_forks = (cpu::in_forked_child(after_fork_in_child), true);

[[noreturn]] void throw_forked() {
  throw DeviceError(
      "kfusion: CUDA was already in use when this process was forked and cannot be used in the child; start workers "
      "with "
      "the 'spawn' method, e.g. multiprocessing.set_start_method('spawn')");
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Devices, or a DeviceError that says why there are none.
int count_or_throw() {
  if (doomed) throw_forked();
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  if (driver == 0) {
    throw DeviceError("kfusion: no NVIDIA driver found (libcuda.so); install the driver, or use arrays on the CPU");
  }
  used = true;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // Handlers run in reverse order: after those of the driver and the runtime were registered, before they run.
  [[maybe_unused]] static const int watching_exit = std::atexit([] { ending = true; });
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    throw DeviceError("kfusion: the NVIDIA driver supports CUDA " + version_text(driver) +
                      ", but this build needs CUDA " + version_text(runtime) +
                      "; update the driver or rebuild kfusion with an older toolkit");
  }
  if (status == cudaErrorInitializationError && child) throw_forked();
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    throw DeviceError("kfusion: the NVIDIA driver sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  check(status, "looking for devices");
  return 0;
}

/// Loads the module on `device`, which shows whether it has code for it.
void require_image(int device) {
  const DuringCapture capture;
  int previous = 0;
  check(cudaGetDevice(&previous), "asking for the current device");
  check(cudaSetDevice(device), "choosing the device");
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel());
  cudaSetDevice(previous);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorUnsupportedPtxVersion) {
    cudaGetLastError();
    const std::string sm = std::to_string(attribute(cudaDevAttrComputeCapabilityMajor, device)) +
                           std::to_string(attribute(cudaDevAttrComputeCapabilityMinor, device));
    throw DeviceError("kfusion: this build has no code for the GPU cuda:" + std::to_string(device) + " (sm_" + sm +
                      "); reinstall with CMAKE_CUDA_ARCHITECTURES=" + sm);
  }
  check(status, "loading the kernels");
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string("kfusion: ") + what + " failed: " + cudaGetErrorString(status) + " (" +
                    cudaGetErrorName(status) + ")");
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for a device attribute");
  return value;
}

bool is_over() noexcept { return doomed || ending; }

bool built() { return true; }

int device_count() noexcept {
  try {
    return count_or_throw();
  } catch (...) {
    return 0;
  }
}

void require(int device) {
  if (device >= 0 && device < kMaxDevices && (usable.load(std::memory_order_relaxed) >> device & 1)) return;
  const int count = count_or_throw();
  if (device < 0 || device >= count || device >= kMaxDevices) {
    throw DeviceError("kfusion: device must be cuda:0" +
                      (count > 1 ? " to cuda:" + std::to_string(count - 1) : std::string()) +
                      ", got cuda:" + std::to_string(device));
  }
  require_image(device);
  usable |= std::uint64_t{1} << device;
}

UseDevice::UseDevice(int device) : device_(device) {
  require(device);
  check(cudaGetDevice(&previous_), "asking for the current device");
  if (previous_ != device_) check(cudaSetDevice(device_), "choosing the device");
}

UseDevice::~UseDevice() {
  if (previous_ != device_) cudaSetDevice(previous_);
}

DeviceInfo device_info(int device) {
  require(device);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  DeviceInfo info;
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  info.clock_hz = attribute(cudaDevAttrClockRate, device) * 1e3;
  info.memory_clock_hz = attribute(cudaDevAttrMemoryClockRate, device) * 1e3;
  info.memory_bytes = properties.totalGlobalMem;
  info.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  info.shared_memory_per_block_bytes = properties.sharedMemPerBlockOptin;
  check(cudaDriverGetVersion(&info.driver_version), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&info.runtime_version), "asking for the runtime's version");
  return info;
}

const Limits& limits(int device) {
  static std::array<Limits, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> once;
  const auto i = static_cast<std::size_t>(device);
  std::call_once(once[i], [&] {
    known[i].multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
    known[i].shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    known[i].l2_bytes = attribute(cudaDevAttrL2CacheSize, device);
    known[i].clusters = attribute(cudaDevAttrClusterLaunch, device) != 0;
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    known[i].early_kernels = known[i].clusters && driver >= 12030;
  });
  return known[i];
}

}  // namespace kfusion::cuda
