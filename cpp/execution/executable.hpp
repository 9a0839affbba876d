// A plan made ready to run at one place: its kernels, and where the values between them lie.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "host/cuda.hpp"
#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// Computes the groups that no kernel of ours does (matmul, conv2d, take).
class ArrayLibrary {
 public:
  virtual ~ArrayLibrary() = default;
  /// Writes what `n` computes of `arguments` to `result`, all at one place, ordered on `stream` where that is CUDA.
  virtual void compute(const Node& n, std::span<const View> arguments, const View& result, cuda::Stream stream) = 0;
};

/// What one run is given.
struct Run {
  const std::byte* const* inputs;  ///< element 0 of each input of the graph, in order
  std::byte* const* outputs;       ///< element 0 of each output; disjoint from all else but for may_overwrite()
  const double* parameters;        ///< the values of the function's float arguments, by number
  cuda::Stream stream = 0;         ///< on CUDA: where the work is enqueued
  ArrayLibrary* library = nullptr;
};

/// Immutable: any number of threads may run one at once.
class Executable {
 public:
  /// `plan` is of executable groups, and its inputs and outputs lie at `place`; `outputs` has their strides, none
  /// empty. `aligned`: all of them begin at multiples of 16 bytes. Compiles CUDA kernels. Throws DeviceError where the
  /// device cannot be used.
  Executable(const Plan& plan, Place place, bool aligned, const OutputStrides& outputs);
  Executable(Executable&&) noexcept;
  ~Executable();

  /// Returns when the work is done (CPU) or enqueued (CUDA). Throws std::bad_alloc, DeviceError, and what the library's
  /// functions throw.
  void run(const Run& r) const;

  /// Whether an output may be an input, element for element: one kernel reads each of them before it writes it, and no
  /// other element.
  bool may_overwrite(std::size_t output, std::size_t input) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace kfusion
