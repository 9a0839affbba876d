#include "host/load.hpp"

#include <memory>
#include <type_traits>

#include "compiler/nvrtc_library.hpp"
#include "host/runtime.hpp"

#if CUDART_VERSION < 12080  // the runtime loads no images before CUDA 12.8: its driver does, and gives the same handles
#include <cudaTypedefs.h>
#endif

namespace kfusion::cuda {
namespace {

#if CUDART_VERSION < 12080
using cudaLibrary_t = CUlibrary;

template <class F>
F driver_function(const char* name) {
  void* function = nullptr;
  check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault), "looking for a function of the driver");
  if (!function) throw DeviceError(std::string("kfusion: the NVIDIA driver has no ") + name + "; update the driver");
  return reinterpret_cast<F>(function);
}

cudaError_t library_of(cudaLibrary_t* library, const char* image) {
  static const auto load = driver_function<PFN_cuLibraryLoadData_v12000>("cuLibraryLoadData");
  return static_cast<cudaError_t>(load(library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

cudaError_t kernel_of(cudaKernel_t* kernel, cudaLibrary_t library, const char* entry) {
  static const auto get = driver_function<PFN_cuLibraryGetKernel_v12000>("cuLibraryGetKernel");
  return static_cast<cudaError_t>(get(kernel, library, entry));
}

void unload(cudaLibrary_t library) noexcept {
  try {
    static const auto release = driver_function<PFN_cuLibraryUnload_v12000>("cuLibraryUnload");
    release(library);
  } catch (const DeviceError&) {  // it stays loaded
  }
}
#else
cudaError_t library_of(cudaLibrary_t* library, const char* image) {
  return cudaLibraryLoadData(library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

cudaError_t kernel_of(cudaKernel_t* kernel, cudaLibrary_t library, const char* entry) {
  return cudaLibraryGetKernel(kernel, library, entry);
}

void unload(cudaLibrary_t library) noexcept { cudaLibraryUnload(library); }
#endif

/// Unloads an image that is not kept.
struct Unload {
  void operator()(cudaLibrary_t library) const noexcept { unload(library); }
};
using Library = std::unique_ptr<std::remove_pointer_t<cudaLibrary_t>, Unload>;

void check_load(cudaError_t status) {
  if (status == cudaErrorInvalidKernelImage || status == cudaErrorNoKernelImageForDevice ||
      status == cudaErrorUnsupportedPtxVersion || status == cudaErrorInvalidPtx) {
    cudaGetLastError();
    throw DeviceError(std::string("kfusion: the NVIDIA driver does not take what was compiled (") +
                      cudaGetErrorName(status) +
                      "); update the driver, or install an NVRTC that is no newer than the driver's CUDA, which "
                      "nvidia-smi shows: pip install " +
                      compiler::nvrtc_package(CUDART_VERSION / 1000));
  }
  check(status, "loading a kernel");
}

std::size_t parameter_bytes([[maybe_unused]] const void* kernel) {
  std::size_t bytes = 0;
#if CUDART_VERSION >= 12040
  std::size_t offset = 0;
  check(cudaFuncGetParamInfo(kernel, 0, &offset, &bytes), "asking for a kernel's parameter");
#endif
  return bytes;
}

/// Lets a kernel have all the shared memory of a block and all the blocks of a cluster that the device has. Gives the
/// compute capability that its text was compiled for, times 10.
int permit_most(const void* kernel, int device) {
  cudaFuncAttributes attributes;  // asking for them brings the code to the device, which a launch in a capture cannot
  check_load(cudaFuncGetAttributes(&attributes, kernel));
  const int dynamic = limits(device).shared_bytes - static_cast<int>(attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic),
        "allowing more shared memory");
  if (limits(device).clusters)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "allowing large clusters");
  return attributes.ptxVersion;
}

}  // namespace

Function load(const std::string& image, const std::string& entry, int device) {
  const DuringCapture capture;
  cudaLibrary_t loaded = nullptr;
  check_load(library_of(&loaded, image.c_str()));
  Library library(loaded);
  cudaKernel_t kernel = nullptr;
  check(kernel_of(&kernel, library.get(), entry.c_str()), "looking for a kernel");
  const int compiled_for = permit_most(kernel, device);
  const Function function{kernel, parameter_bytes(kernel), compiled_for >= 90};
  library.release();  // it is needed as long as graphs may launch the kernel, and nobody says how long that is
  return function;
}

}  // namespace kfusion::cuda
