// What the text of a kernel depends on: its axes and how its operands lie along them, but no extent and no stride.
// Those are numbers of a call, and here is where each stands.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/machine_code/target.hpp"
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
  const std::int64_t* columns;  ///< what column_call.hpp has
};
enum class Field : std::uint8_t { kLoads, kStores, kIntegers, kNumbers, kLibm, kFault, kScratch, kColumns };

/// Takes the rows [row, last_row), and the elements [begin, end) of each. A kernel that makes sums of parts of the rows
/// takes all of each of these rows, which are part `begin`.
using Function = void (*)(const Call*, std::int64_t row, std::int64_t last_row, std::int64_t begin, std::int64_t end);

/// How often an operand gives another element.
enum class Reach : std::uint8_t {
  kOnce,    ///< one for all of the kernel
  kOfRow,   ///< one for each row
  kOfRun,   ///< one for each run: what a row of several axes has along the last of them
  kDense,   ///< neighbours in memory along the run
  kStrided  ///< others along the run
};

/// An operand of the kernel, or the numbers of an iota, with strides in bytes (of an iota: in numbers).
struct Layout {
  const Operand* operand = nullptr;
  int item = 1;
  int array = -1;  ///< of Call::loads or stores; -1: an iota
  bool stored = false;
  Reach reach = Reach::kDense;
  bool by_rows = false;  ///< it lies elsewhere in each row
  bool by_runs = false;  ///< and in each run of a row
  bool summed = false;   ///< sums of parts of the rows (Store::parts): elements are added to them
  bool is_table = false;
  /// It lies along short rows (Form::joins_rows) otherwise than from row to row: `reach` is that of a copy.
  bool copied = false;
  Reach along = Reach::kDense;  ///< of what is copied, along a row
  bool repeats = false;         ///< it is the same in all rows of a block
  bool transposed = false;      ///< Form::across: it is dense along the reduced axis; taken as if lanes were neighbours
  int row_elements = 0;   ///< and its rows of so many elements lie one after the other; 0: others, or more elements
  int first_integer = 0;  ///< its offset, then its strides by axis
  int number = 0;         ///< among all operands of the kernel
  bool is_iota() const { return array < 0; }
};

/// Facts of a form, all of which form_key.cpp lists.
struct FormFacts {
  bool streams = false;  ///< stores go past the caches
  int axes = 0;
  int row_axes = 0;     ///< that rows lie along; the last axis is that of runs, and others count a row's runs
  int lanes = 0;        ///< of all vectors
  int registers = 0;    ///< that are taken at once: so many independent instructions follow each other
  bool across = false;  ///< lanes lie along the last kept axis, which comes last here: "rows" are the other kept axes,
                        ///< and their runs are what the kernel's reductions take
  bool in_tiles = false;  ///< across: some columns go through all sweeps, then the next
  int together = 1;       ///< across: so many rows of few columns are one, side by side (side_by_side.hpp)
  int chains = 1;  ///< across: of few columns so many rows have accumulators of their own, which a core adds at once
  bool fetches = false;        ///< what the next rows read is fetched, since it is in no cache
  bool fetches_near = false;   ///< rows: to the first-level cache
  bool pages_in_turn = false;  ///< and lines of several pages in turn (fetches_pages_in_turn)
  bool row_by_row = false;     ///< across: each row goes through a block of columns by itself, as memory lies
  bool has_moments = false;    ///< each pair of reductions is a mean and the squares about it, taken by one sweep
  bool joins_rows = false;     ///< of maps: a row is all that lies along the last two axes, since the last one is short
  bool in_pieces = false;      ///< rows go by in pieces (pieces.hpp): they are long, or too few for the threads
};

class Form : public FormFacts {
 public:
  Form(const Kernel& k, const TargetFacts& target, bool streams);

  const Kernel& kernel;
  const TargetFacts& target;
  std::vector<Layout> loads, iotas, tables, stores;
  int operands = 0;  ///< all of these

  int run_axes() const { return axes - 1 - row_axes; }
  const Schedule& schedule() const { return has_moments || takes_pairs() ? kernel.paired : kernel.separate; }
  /// Whether the second of a pair is taken of each piece before the next: all of a row would have left the cache.
  bool takes_pairs() const { return takes_pairs_; }
  Reach reach(int step) const { return reach_[static_cast<std::size_t>(step)]; }
  /// Whether elements of a run have others.
  bool is_vector(int step) const { return reach(step) > Reach::kOfRun; }
  /// Whether elements of a row have others.
  bool varies(int step) const { return reach(step) > Reach::kOfRow; }
  /// Whether there is no less of a run than the registers that are taken at once.
  bool begins_with_registers() const {
    return run_axes() == 0 && !in_pieces && cols() >= std::int64_t{lanes} * registers;
  }
  /// Whether it is another one in each run.
  bool along(int step) const { return along_[static_cast<std::size_t>(step)]; }
  /// Where Call::integers has them.
  int extent(int axis) const { return axis; }
  int offset(const Layout& p) const { return p.first_integer; }
  int stride(const Layout& p, int axis) const { return p.first_integer + 1 + axis; }
  /// A table has so many positions, and so many bytes from one to the next.
  int positions(int table) const { return positions_ + 2 * table; }
  int table_stride(int table) const { return positions(table) + 1; }
  /// Short rows that are joined at a time.
  int block() const { return positions(static_cast<int>(tables.size())); }
  int constant(int c) const { return constants_ + c; }

  /// The integers of a call: all but what parameters give.
  std::vector<std::int64_t> integers() const;
  std::int64_t rows() const;
  std::int64_t transposed_operands() const;
  /// Distinct elements of an operand.
  std::int64_t elements(const Layout& p) const;
  std::int64_t cols() const { return joins_rows ? extents_.back() * extents_[extents_.size() - 2] : extents_.back(); }
  /// What one call takes of a row.
  std::int64_t piece() const;
  /// Registers that a short row fills, the last one in part.
  int registers_of_row() const;
  std::int64_t rows_of_block() const;
  /// Copies of blocks of rows.
  std::int64_t copied_bytes() const;
  const Extents& extents() const { return extents_; }

 private:
  Layout layout_of(const Operand& o, int item, int array, bool stored);
  void join(Layout& p, const Extents& strides) const;
  Extents strides(const Layout& p) const;
  void transpose(Layout& p) const;

  Reach reach_of(const Step& s) const;
  std::int64_t row_bytes() const;
  bool follows_rows(const Layout& p) const;
  bool is_along(const Step& s) const;
  void lay_side_by_side();
  Extents ordered(const Extents& kept, const Extents& reduced) const;

  Extents extents_;
  int constants_ = 0, positions_ = 0;
  bool takes_pairs_ = false;
  std::vector<Reach> reach_;  ///< by step
  std::vector<bool> along_;   ///< by step
};

}  // namespace kfusion::cpu::ir
