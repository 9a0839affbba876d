// From generated CUDA C++ to a launch. Knows no CUDA header: built with nvcc it is compile.cpp, without no_cuda.cpp.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "host/cuda.hpp"

namespace kfusion::codegen {
struct Launch;
struct Target;
}  // namespace kfusion::codegen

namespace kfusion::cuda {

/// What the generator must know of `device`; asked once per device. Throws DeviceError where it cannot be used.
const codegen::Target& target(int device);

/// A kernel loaded on one device, ready to launch (also into a graph that is being captured). Lives as long as the
/// process.
class Function;

/// The kernel `entry` of the CUDA C++ text `source` on `device`: from memory, else prebuilt, else from the cache on
/// disk, else compiled. Thread-safe. Waits for nothing on the device. Throws
/// - DeviceError: the device cannot be used, there is no NVRTC (it says how to get one), or the image cannot be loaded;
/// - std::runtime_error with the log and the source around it: the text does not compile, which is a bug.
/// `own`: the text needs instructions that only GPUs of the device's very architecture have (sm_90a).
const Function& compile(const std::string& source, const std::string& entry, int device, bool own = false);

/// A kernel that is compiled meanwhile, on a thread of its own: those of a plan at the same time.
class Compiling {
 public:
  /// Starts what compile() does; throws where the device cannot be used.
  Compiling(const std::string& source, const std::string& entry, int device, bool own = false);
  Compiling(Compiling&&) noexcept;
  ~Compiling();

  /// Waits for it. Throws what compile() throws; the next one who asks starts anew.
  const Function& get();

  struct Making;  ///< of one text, shared by all who want it

 private:
  std::shared_ptr<Making> making_;
};

/// `launch` with no more blocks than run at once, where it asks for that (Launch::resident).
codegen::Launch fitted(const Function& function, const codegen::Launch& launch, int device);

/// Enqueues `function` with its one parameter, the `bytes` bytes at `parameters` (copied before it returns), on
/// `stream`. Nothing is launched for an empty grid. Allocates and waits for nothing.
void launch(const Function& function, const codegen::Launch& launch, const void* parameters, std::size_t bytes,
            int device, Stream stream);

}  // namespace kfusion::cuda
