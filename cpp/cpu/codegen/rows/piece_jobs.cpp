#include <algorithm>

#include "cpu/buffer.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/rows/pieces.hpp"
#include "cpu/stream.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {

Pieces::Pieces(const Form& form) {
  if (!form.in_pieces) return;
  const std::int64_t length = form.cols(), runs = form.kernel.cols() / std::max<std::int64_t>(length, 1);
  const std::int64_t at_once = form.run_axes() == 0 ? 1 : std::max<std::int64_t>(1, kRowPiece / length);
  count = divide_up(runs, at_once) * divide_up(length, kRowPiece);
  const std::int64_t numbers = result_numbers(form);
  scratch_bytes = whole_lines(8 * numbers) + whole_lines(8 * numbers * count) +
                  ir::scratch_bytes(RowPlan(form), form.kernel.cols());
}

void run_in_pieces(const std::vector<Function>& functions, const Pieces& pieces, const Call& call, std::int64_t rows,
                   int threads, bool streams) {
  const auto take_rows = [&](std::int64_t first, std::int64_t last, int together) {
    const Buffer scratch(static_cast<std::size_t>(pieces.scratch_bytes));
    Call mine = call;
    mine.scratch = scratch.data();
    for (std::int64_t row = first; row < last; ++row)
      for (std::size_t f = 0; f < functions.size(); f += 2) {
        parallel_for(pieces.count, together, [&](std::int64_t begin, std::int64_t end) {
          functions[f](&mine, row, row + 1, begin, end);
          if (streams) stream_fence();
        });
        functions[f + 1](&mine, row, row + 1, 0, 0);
      }
  };
  constexpr std::int64_t kManyRows = 4, kManyPieces = 2;  // for each thread
  if (threads == 1) return take_rows(0, rows, 1);
  if (rows < kManyRows * threads && (rows == 1 || pieces.count >= kManyPieces * threads))
    return take_rows(0, rows, threads);
  parallel_for(rows, threads, [&](std::int64_t first, std::int64_t last) { take_rows(first, last, 1); });
}

}  // namespace kfusion::cpu::ir
