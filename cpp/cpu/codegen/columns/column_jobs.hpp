// Which thread takes which columns and which part of the rows, of kernels whose lanes are columns (columns.cpp).
#pragma once
#include <vector>

#include "cpu/codegen/columns/column_call.hpp"
#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

class ColumnJobs {
 public:
  explicit ColumnJobs(const Form& form);

  /// Whether stores may go past the caches: all rows lie alike to lines.
  bool may_stream() const { return may_stream_; }
  /// Results do not depend on the number of threads. `streams`: stores go past the caches.
  void run(Function function, const Call& call, int threads, bool streams) const;

 private:
  struct Task {
    Function function;
    const Call& call;
    bool streams;
    void take(std::byte* scratch, const ColumnCall& told, std::int64_t group, std::int64_t last_group,
              std::int64_t begin, std::int64_t end) const;
  };
  void repeat(std::byte* scratch, std::int64_t phase) const;
  ColumnCall told(std::int64_t first_phase, std::int64_t last_phase) const;
  void run_tiles(const Task& task, int threads) const;
  void run_blocks(const Task& task, int threads) const;
  void run_parts(const Task& task, int threads) const;

  std::int64_t groups_, rows_, columns_;
  bool in_tiles_, may_stream_;
  std::int64_t unit_;  ///< columns of a register
  std::int64_t rows_at_once_;
  std::int64_t block_;            ///< columns that go through all sweeps before the next do
  std::int64_t parts_;            ///< of the rows
  std::int64_t together_, rest_;  ///< rows that are one (Form::together), and those behind the last of these
  struct Held {
    std::int64_t phase, place, item;  ///< what a phase leaves for each column: where in the scratch memory
  };
  std::vector<Held> held_;
  std::int64_t phases_;
  std::int64_t array_bytes_, first_part_, part_bytes_, scratch_bytes_;
};

}  // namespace kfusion::cpu::ir
