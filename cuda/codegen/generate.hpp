// From a kernel's loops (kfusion/lower/kernel.hpp) to CUDA C++ text, its launch and its parameters. Needs neither a GPU
// nor a CUDA header, and is always built.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::codegen {

/// What a kernel's launch depends on. The defaults are an H200's.
struct Target {
  int compute_major = 9, compute_minor = 0;
  int multiprocessors = 132;
  int shared_bytes = 232448;  ///< the most that a block can ask for
  std::int64_t l2_bytes = std::int64_t{50} << 20;
  bool clusters = true;  ///< of blocks, up to 8, by compute capabilities 9 and 10 up to 16
};
/// What predictions for a Hopper GPU, which may be absent, depend on.
inline Target target_of(const Device& device) {
  return {.multiprocessors = device.units, .shared_bytes = static_cast<int>(device.tile_bytes)};
}

struct Launch {
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};  ///< grid[0] is 0 where there is nothing to do
  unsigned cluster = 1;                                ///< blocks of grid[0] that form a cluster
  bool resident = false;                               ///< grid[0] is at most as many blocks as run at once
  bool cooperative = false;                            ///< all blocks run at the same time, or none
  bool early = false;                                  ///< may start before the stream's earlier kernels have ended,
                                                       ///< for which it waits itself
  std::size_t shared_bytes = 0;                        ///< dynamic
  std::size_t workspace_bytes = 0;                     ///< global memory, 16-byte aligned
  std::size_t standing_bytes = 0;                      ///< the same, zero before each launch and zero again after it
};

/// Where a launch's memory lies.
struct Memory {
  std::byte* workspace = nullptr;
  std::byte* standing = nullptr;
};

/// Eight bytes of a kernel's parameter.
struct Cell {
  enum class Kind : std::uint8_t { kNumber, kLoad, kStore, kConstant, kWorkspace, kStanding };
  Kind kind = Kind::kNumber;
  std::int64_t value = 0;  ///< kNumber: itself; kLoad, kStore: bytes added to the address
  int index = 0;           ///< kLoad, kStore, kConstant
};

/// A kernel as CUDA C++.
///
/// Static in the text are: steps and dtypes, the number of axes, which strides are 0, 1 or another number, the width of
/// vectors, whether indices have 32 or 64 bits, the class of a row's length, and whether rows or elements are few.
/// Sizes, strides, offsets and scalars are members of the one parameter, so another scalar gives the same text, and
/// another batch size but for what is few.
class CudaKernel {
 public:
  /// `aligned`: all arrays begin at multiples of 16 bytes; else only at multiples of their item.
  CudaKernel(const Kernel& kernel, const Target& target, bool aligned = true);

  /// Complete; it #includes embedded headers only. Compile it with --std=c++20 and --fmad=false.
  const std::string& source() const { return source_; }
  const std::string& entry() const { return entry_; }  ///< the kernel's extern "C" name
  const Launch& launch() const { return launch_; }

  /// Whether, in a kernel that reduces, a thread that stores an element has read all that is read there, and no other
  /// thread reads it.
  bool reads_first() const { return reads_first_; }

  /// Writes the parameter_bytes() bytes of the kernel's one by-value parameter. `loads` and `stores`: the address of
  /// element 0 of each array, in the order of Kernel::loads and Kernel::stores (Operand::offset is added here);
  /// `parameters`: values for Constant::parameter; `memory`: on the device, as launch() says.
  void write_parameters(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                        const Memory& memory, std::byte* to) const;
  std::size_t parameter_bytes() const { return cells_.size() * sizeof(std::int64_t); }

 private:
  std::string source_, entry_;
  Launch launch_;
  std::vector<Cell> cells_;
  std::vector<Constant> constants_;
  bool reads_first_ = false;
};

/// The kernel as it is compiled: without the names of values, which are for people. So the same work in each layer of a
/// model is one text, which is compiled once.
Kernel without_names(Kernel kernel);

/// The device headers that a source may #include: name ("device/prelude.cuh") and text.
std::span<const std::pair<std::string_view, std::string_view>> embedded_headers();

}  // namespace kfusion::codegen
