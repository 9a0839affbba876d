// What the text of a kernel depends on: its axes and how its operands lie along them, but no extent and no stride.
// Those are numbers of a call, and here is where each stands.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/codegen/target.hpp"
#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {
struct IndexFault;
}

namespace kfusion::cpu::ir {

/// What generated code is called with. Its fields are pointers, in the order that Form::Field names.
struct Call {
  const std::byte* const* loads;
  std::byte* const* stores;
  const std::int64_t* integers;
  const double* numbers;
  const void* const* libm;
  IndexFault* fault;
  std::byte* scratch;
};
enum class Field : std::uint8_t { kLoads, kStores, kIntegers, kNumbers, kLibm, kFault, kScratch };

/// The rows [row, last_row) and of each the elements [begin, end).
using Function = void (*)(const Call*, std::int64_t row, std::int64_t last_row, std::int64_t begin, std::int64_t end);

/// How often an operand gives another element.
enum class Reach : std::uint8_t {
  kOnce,    ///< one for all of the kernel
  kOfRow,   ///< one for each row
  kDense,   ///< neighbours in memory along the row
  kStrided  ///< others along the row
};

/// An operand of the kernel, or the numbers of an iota, with strides in bytes (of an iota: in numbers).
struct Place {
  const Operand* operand = nullptr;
  int item = 1;
  int array = -1;  ///< of Call::loads or stores; -1: an iota
  bool stored = false;
  Reach reach = Reach::kDense;
  bool by_rows = false;   ///< it lies elsewhere in each row
  int first_integer = 0;  ///< its offset, then its strides by axis
  int number = 0;         ///< among all operands of the kernel
  bool is_iota() const { return array < 0; }
};

class Form {
 public:
  Form(const Kernel& k, const TargetFacts& target, bool streams);

  const Kernel& kernel;
  const TargetFacts& target;
  bool streams;  ///< stores go past the caches
  int axes;
  int lanes;         ///< of all vectors
  int registers;     ///< that are taken at once: so many independent instructions follow each other
  bool has_moments;  ///< each pair of reductions is a mean and the squares about it, taken by one sweep
  std::vector<Place> loads, iotas, tables, stores;
  int operands = 0;  ///< all of these

  int outer_axes() const { return axes - 1; }
  const Schedule& schedule() const { return has_moments ? kernel.paired : kernel.separate; }
  Reach reach(int step) const { return reach_[static_cast<std::size_t>(step)]; }
  /// Whether each element has another one.
  bool varies(int step) const { return reach(step) > Reach::kOfRow; }
  /// Where Call::integers has them.
  int extent(int axis) const { return axis; }
  int offset(const Place& p) const { return p.first_integer; }
  int stride(const Place& p, int axis) const { return p.first_integer + 1 + axis; }
  int constant(int c) const { return constants_ + c; }

  /// The integers of a call: all but what parameters give.
  std::vector<std::int64_t> integers() const;
  std::int64_t rows() const;
  /// Distinct elements of an operand.
  std::int64_t elements(const Place& p) const;
  std::int64_t cols() const { return extents_.back(); }
  const Extents& extents() const { return extents_; }

 private:
  Place place(const Operand& o, int item, int array, bool stored);
  Extents strides(const Place& p) const;

  Reach reach_of(const Step& s) const;

  Extents extents_;
  int constants_ = 0;
  std::vector<Reach> reach_;  ///< by step
};

/// The text of the kernel, whose function is called "kernel".
std::string kernel_text(const Form& form);

/// Why the generator does not take a kernel; empty where it does.
std::string why_not_generated(const Kernel& k);

}  // namespace kfusion::cpu::ir
