// One thread's part of a fused kernel: the addresses of the operands, the scratch behind them, and the loop that runs
// a program over elements of the flat index, tile by tile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/edge_line.hpp"
#include "cpu/fused/program.hpp"
#include "cpu/fused/tables.hpp"

namespace kfusion::cpu {

/// The arrays and numbers of one call.
struct FusedCall {
  const FusedProgram& program;
  const std::byte* const* loads;
  std::byte* const* stores;
  const double* parameters;
  IndexFault* fault = nullptr;
  bool stream = false;
  bool staged = false;  ///< in place with several stores: a tile is read as a whole before any of it is written
};

class Worker {
 public:
  explicit Worker(const FusedCall& call);
  /// The same with another worker's row values, and its kept values in common.
  Worker(const FusedCall& call, const Worker& from);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  ///< what was streamed is visible to others

  /// Moves all operands to an outer index: where rows lie along the flat index, one of `kept`, else one of `reduced`.
  void go_to(std::int64_t outer);
  /// To the first of some rows of a group, whose arrays are copied where they are not dense.
  void go_to_group(std::int64_t first, std::int64_t rows);
  /// Of a row in runs (Space::run_length): to one of them. Elements are counted along the row.
  void go_to_run(std::int64_t run);
  /// Once its row values are known: the rows of tables that they are indices of.
  void take_rows();
  /// The end of a group: results that are not dense go to their places, sums of rows to those of their part.
  void leave_group();
  /// The next group is the first one of a part of the rows.
  void begin_part(std::int64_t part);

  /// The elements [begin, end); `first`: reductions start anew.
  void run(const TileProgram& p, std::int64_t begin, std::int64_t end, bool first = true);
  /// Of columns: the same of the whole tiles in [begin, end) and of `rows` rows, by a program that takes several.
  void run_rows(const TileProgram& p, std::int64_t begin, std::int64_t end, bool first, std::int64_t rows);
  /// The elements [begin, end) of the rows of the group.
  void run_group(const TileProgram& p, std::int64_t begin, std::int64_t end);
  /// The same of a phase that has one loop.
  void run_moments(const RowMoments& m, std::int64_t begin, std::int64_t end);
  /// Stores elements of the rows of the group, and takes those of the next one's, which is another worker's.
  void run_ahead(Worker& next, std::int64_t begin, std::int64_t end);
  /// Another worker goes on storing: lines that rows share are known to one of them.
  void hand_lines_to(Worker& next) { edges_.swap(next.edges_); }
  /// A program for the values of the rows of the group.
  void run_row_values(const TileProgram& p);

  std::byte* scratch(std::int64_t place) const { return scratch_ + place; }
  /// Where the array of an operand that lives in the scratch is to begin, so that element `begin` is its first.
  void shift_arrays(std::int64_t begin);
  /// As if they were those of elements so much further on.
  void move_accumulators(std::int64_t elements);

 private:
  // worker.cpp: what it starts with, and addresses.
  void attach();
  void attach_tables();
  void set_constants();
  void copy_shared();
  void copy_period(const Source& s);
  void go_to_tables(std::int64_t outer);

  // worker_groups.cpp: groups of rows.
  std::int64_t index_of(int step, std::int64_t row) const;
  void take_row(const Source& s, std::int64_t row);
  void fetch_next_rows(const Source& s) const;
  std::byte* sums_of_part(std::size_t target) const;
  void add_to_part(std::size_t target) const;
  void go_to_row(std::int64_t row);
  void next_row();

  // worker_tiles.cpp: programs, tile by tile.
  void run_tiles(const TileProgram& p, Width w, std::int64_t& i, std::int64_t end);
  void steps(const TileProgram& p, Width w, std::int64_t i, std::int64_t end);
  std::int64_t to_alignment(const TileProgram& p, std::int64_t begin) const;
  void tile(const TileProgram& p, Width w, std::int64_t i);
  void part_of_tile(const TileProgram& p, Width w, std::int64_t i, std::int64_t count);
  void overlapping_tile(const TileProgram& p, Width w, std::int64_t from, std::int64_t count);
  void staged_steps(const TileProgram& p, Width w, std::int64_t i);
  void fetch(const TileProgram& p, std::int64_t i, std::int64_t count, bool all);
  void write_to_stages(const TileProgram& p, std::int64_t i);
  void bring_sums(const TileProgram& p, std::int64_t i, std::int64_t from, std::int64_t count);
  void put(const TileProgram& p, std::int64_t i, std::int64_t count, bool all);
  void store_part(std::size_t target, std::byte* to, const std::byte* from, std::int64_t bytes);
  /// Behind the last element of the run, or of a row in one piece.
  std::int64_t run_end() const {
    const Space& space = program_.space;
    return space.run_length > 0 ? (run_ + 1) * space.run_length : space.cols;
  }

  static constexpr std::int64_t kLocalBytes = 12 * 1024;
  static constexpr int kLocalOperands = 64;

  const FusedCall& call_;
  const FusedProgram& program_;
  Buffer scratch_buffer_, addresses_buffer_;
  std::byte* scratch_;
  std::byte** at_;
  const std::byte** source_base_;  ///< of each source, at the outer index
  std::byte** target_base_;
  TileContext context_;
  std::int64_t first_ = 0, rows_ = 1;  ///< of the group
  std::int64_t part_ = 0;
  std::int64_t run_ = 0;                        ///< the one that the addresses are of
  bool begins_part_ = false;                    ///< the group's first row is the part's
  std::vector<TileTable> tables_, row_tables_;  ///< along the flat index; along the rows of the group
  std::vector<Extents> along_rows_;             ///< strides of row_tables_
  Extents group_rows_ = {1};
  std::vector<EdgeLine> edges_;  ///< of each target, where stores go past the caches
  alignas(64) std::byte local_scratch_[kLocalBytes];
  std::byte* local_addresses_[2 * kLocalOperands];
};

}  // namespace kfusion::cpu
