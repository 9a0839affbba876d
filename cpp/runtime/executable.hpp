// A plan made ready to run at one place: its kernels, and where the values between them lie.
#pragma once
#include <cstddef>
#include <memory>

#include "kfusion/lower/kernel.hpp"
#include "runtime/memory.hpp"

namespace kfusion {

class LibraryFunctions;  // library_functions.hpp
struct Slots;            // slots.hpp

/// What one run is given.
struct Run {
  const std::byte* const* inputs;       ///< element 0 of each input of the graph, in order
  std::byte* const* outputs;            ///< element 0 of each output; disjoint from all else but for may_overwrite();
                                        ///< nullptr: the library makes it when it is first stored into
  const double* parameters;             ///< the values of the function's float arguments, by number
  Stream stream = 0;                    ///< where the work is enqueued, where the place has streams
  LibraryFunctions* library = nullptr;  ///< the caller's, for the groups that it computes
};

/// Immutable: any number of threads may run one at once.
class Executable {
 public:
  /// `plan` is one to run, whose inputs and outputs lie at `place`; `outputs` has their strides, none empty. `aligned`:
  /// all of them begin at multiples of the memory's vector_bytes. Compiles kernels. Throws DeviceError where the device
  /// cannot be used, ValueError for a group that has no executor.
  Executable(Plan plan, const Device& device, Place place, bool aligned, const OutputStrides& outputs);
  Executable(Executable&&) noexcept;
  ~Executable();

  /// Returns when the work is enqueued, or done where the place has no streams. Throws std::bad_alloc, DeviceError, and
  /// what the library's functions throw.
  void run(const Run& r) const;

  const Slots& slots() const;  ///< for tests

  /// Whether functions of the library run between the kernels, which need memory for themselves.
  bool has_library_steps() const;

  /// Whether an output may be an input, element for element: the one kernel that stores it reads each element before it
  /// writes it, and no other; no later kernel reads the input, or is a library's function, which can fail. `part`: the
  /// output is only a part of the input, which then no kernel may read.
  bool may_overwrite(std::size_t output, std::size_t input, bool part) const;

 private:
  struct Parts;
  class Maker;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace kfusion
