// Rows that go by in pieces: long ones, which leave the cache between two sweeps, and those of kernels with too few
// rows for the threads, of which all of them take each. Where a row is cut depends on its length alone, and what the
// pieces leave of a reduction is combined in their order, whoever took them.
//
// The text has two functions for each sweep: "sweepN" takes the pieces [begin, end) of a row, "finishN" what all have
// left. They share memory that belongs to the row:
//
//   the results of reductions, 8 bytes each
//   by piece: the same reductions of its elements
//   values that sweeps keep, as rows
#pragma once
#include <algorithm>

#include "cpu/codegen/rows/row_plan.hpp"
#include "cpu/codegen/rows/row_sweeps.hpp"

namespace kfusion::cpu::ir {

/// Results of reductions.
inline std::int64_t result_numbers(const Form& form) {
  return std::ranges::count(form.kernel.steps, StepKind::kReduce, &Step::kind);
}
constexpr std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) & -64; }

struct Pieces {
  explicit Pieces(const Form& form);

  std::int64_t count = 1;          ///< of a row
  std::int64_t scratch_bytes = 0;  ///< of a row
};

/// The functions of one sweep.
void write_sweep(const Form& form, int sweep);
void write_finish(const Form& form, int sweep);

/// Runs the functions of the text on so many threads.
void run_in_pieces(const std::vector<Function>& functions, const Pieces& pieces, const Call& call, std::int64_t rows,
                   int threads, bool streams);

}  // namespace kfusion::cpu::ir
