// A fused kernel's inner loop: an array of steps over a tile of elements that lies in vector registers. A step is a
// function that takes the tile as its arguments and jumps to the next one, so that a value goes through memory only
// where it has to wait for its use. The functions are compiled once per instruction set (*_kernels.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/fused/column_search.hpp"
#include "cpu/fused/expression.hpp"
#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion::cpu {

/// A tile in registers: kFull is eight registers, kShort is one. An element takes as many
/// bytes of a register as the kernel's widest type: with 8-byte types, 4-byte ones use the lower half of a register.
enum class Width : std::uint8_t { kFull, kShort };
inline constexpr int kWidths = 2;

struct EdgeLine;
struct TileTable;

using StepFunction = void (*)();  ///< its own signature is known to the steps alone

struct TileStep {
  StepFunction run = nullptr;
  std::int32_t operand = 0, second = 0;        ///< of TileContext::at: what the step reads or writes beside the tile
  std::int32_t scale = 0, second_scale = 0;    ///< bytes from element to element of the run; 0: the same for all tiles
  std::int32_t stride = 0, second_stride = 0;  ///< bytes from register to register; 0: one number for all
  std::int32_t fetch = 0, fetches = 0;         ///< of TileContext::fetches: what it prefetches
  std::int32_t table = 0;                      ///< of TileContext::tables
};

/// What a step prefetches for each register of the tile: element i's share begins at element 0 of the operand + `ahead`
/// + i * (stride / elements of a register).
struct TileFetch {
  std::int32_t operand = 0;
  std::int32_t stride = 0;  ///< bytes from register to register
  std::int32_t shift = 0;   ///< log2 of the elements of a register
  std::int64_t ahead = 0;   ///< bytes
  bool far = false;         ///< to the second-level cache
};
inline constexpr int kMaxFetches = 4;  ///< of a step

/// Rows that are taken while the accumulators of a tile of columns stay in registers.
inline constexpr std::int64_t kRowsAtOnce = 8;

/// Functions and divisions are long: their code stands once, in a loop over the tile's registers. The others are a few
/// instructions on each register.
constexpr bool is_long(Op op) { return info(op).cost != OpCost::kSimple; }

struct TileContext {
  std::byte* const* at = nullptr;  ///< element 0 of every operand
  const TileFetch* fetches = nullptr;
  const std::int64_t* row_steps = nullptr;  ///< by operand: bytes to its next row
  EdgeLine* edge = nullptr;                 ///< of the array that a row loop stores, where stores go past the caches
  std::int64_t rows = 1;                    ///< of columns: that a joined program takes
  std::int64_t i = 0;                       ///< the tile that was taken last
  std::int64_t last = 0;                    ///< the last whole tile of the run
  std::int64_t valid = 0;                   ///< elements of the tile that count
  std::int64_t end = 0;                     ///< of the elements that count
  const TileTable* tables = nullptr;
  bool partial = false;  ///< some do not
  bool first = true;     ///< the first tile of a reduction
  bool columns = false;  ///< each element has accumulators of its own: a reduction's first tile is all of a row
  bool stream = false;   ///< stores go past the caches where addresses allow it
};

/// Elements [begin, end) of the rows [first, last) of a group.
struct RowBlock {
  std::int64_t first = 0, last = 1, begin = 0, end = 0;
};

/// Leaves of an expression that is a loop, and what it prefetches.
inline constexpr int kFormArrays = 3, kFormNumbers = 5, kFormFetches = 3;

/// A sweep over rows as one loop, where its steps are those of normalisations and softmax (row_loop_kernels.cpp has the
/// grammar), make an expression of some arrays (expression_kernels.cpp has the forms), or search for a number of the
/// row (searches.hpp: for `centre`; `factor` where there is none). What it reads and writes are operands of
/// TileContext::at.
struct RowLoop {
  using Run = void (*)(const RowLoop& loop, const TileContext* context, const RowBlock& block);
  Run run = nullptr;  ///< nullptr: the steps are others
  std::int32_t x = -1, centre = -1, factor = -1, weight = -1, bias = -1;
  std::int32_t kept = -1;  ///< where exponentials stay for a later sweep
  std::int32_t to = -1;    ///< the array to store to, or the reduction's accumulators
  bool folds = false;      ///< leaves one accumulator, not a register of them
  TileFetch fetch;         ///< stride 0: nothing
  // Of an expression:
  std::int32_t arrays[kFormArrays] = {-1, -1, -1}, numbers[kFormNumbers] = {-1, -1, -1, -1, -1};
  bool places = false;   ///< number 0 is a position,
  int place_bytes = 8;   ///< of so many bytes
  bool divides = false;  ///< by number 0
  bool adds = false;     ///< to sums of a part of the rows, where they lie
  int target = -1;       ///< of FusedProgram::targets: that it stores to
  int fetched = 0;       ///< of `fetches`
  TileFetch fetches[kFormFetches];
};

/// A mean and the squared distances from it by one sweep in the place of two loops.
struct RowMoments {
  using Run = void (*)(const RowMoments& loops, const TileContext* context, const RowBlock& block);
  Run run = nullptr;  ///< nullptr: the loops are others
  RowLoop mean, squares;
};

/// A group's results by one loop while the next group's moments are taken: memory is read and written evenly, as by a
/// copy.
struct RowAhead {
  using Run = void (*)(const RowAhead& loops, const TileContext* stored, const RowBlock& stored_block,
                       const TileContext* next, const RowBlock& next_block);
  Run run = nullptr;  ///< nullptr: there is none
  RowLoop store;
  RowMoments moments;
};

/// What one instruction set offers. A null StepFunction: there is no such step.
struct TileKernels {
  int vector_bytes, registers;  ///< of a full tile

  /// The tile becomes op(tile, operand, second operand), elements of compute type `held`.
  StepFunction (*map)(Op op, DType held, Width width);
  /// Elements in memory from and to the tile. `wide`: the kernel has 8-byte types.
  StepFunction (*load)(DType dtype, Width width, bool wide);
  StepFunction (*store)(DType dtype, Width width, bool wide);
  /// The tile is added to elements in memory, of a float type that is no half type.
  StepFunction (*add)(DType dtype, Width width, bool wide);
  /// The tile, of indices, becomes elements of the table; the two operands have room for the indices and the elements.
  StepFunction (*take)(DType dtype, Width width, bool wide);
  /// To another compute type; of floats also to a half type: rounded to it, as float32.
  StepFunction (*cast)(DType held, DType to, Width width);
  /// Between the tile and a slot, as it is; `number`: the operand's first element, of `bytes` bytes, everywhere.
  StepFunction (*reload)(Width width);
  StepFunction (*spill)(Width width);
  StepFunction (*number)(int bytes, Width width);
  /// The operand, a register of accumulators, takes up the tile; or with `columns` each element its own accumulator.
  /// `positive`: no element is negative.
  StepFunction (*reduce)(Op op, DType held, Width width, bool wide, bool columns, bool positive);
  /// The last step.
  StepFunction (*done)(Width width);
  /// Puts functions that do several steps at once in the place of their first one's: for whole tiles of full width. One
  /// that is all of a program goes on to the next tiles; of columns it takes several rows, and then the answer is true.
  bool (*join)(TileStep* steps, int count, bool columns);
  /// The same steps of full width as a loop over rows; without `run` where there is none. `fetches`: of
  /// TileStep::fetch.
  RowLoop (*row_loop)(const TileStep* steps, int count, const TileFetch* fetches);
  /// The sum of an expression over a row, and an expression that is stored as `to`; without `run` where there is none.
  RowLoop (*sum_loop)(const Expression& e, DType elements);
  RowLoop (*store_loop)(const Expression& e, DType elements, DType to);
  /// Finds the first element of each row, dense in memory, that equals a number of the row; `nan`: or is NaN.
  RowLoop::Run (*row_search)(DType elements, bool nan);
  /// Finds the largest or smallest element of each column; nullptr for bools.
  ColumnSearch::Run (*column_search)(DType elements, bool largest);
  /// Both in one sweep, where `squares` are those of distances from the mean.
  RowMoments (*row_moments)(const RowLoop& mean, const RowLoop& squares);
  /// `ahead`: bytes that are prefetched before they are read.
  RowAhead (*row_ahead)(const RowMoments& moments, const RowLoop& store, std::int64_t ahead);
  /// Runs a program on the whole tiles, of `elements` elements, in [i, end).
  void (*run[kWidths])(const TileStep* steps, TileContext* context, std::int64_t i, std::int64_t end,
                       std::int64_t elements);
  /// `count` elements of a half type as float32.
  void (*widen)(DType half, const std::byte* from, std::int64_t count, std::byte* to);
  /// Sums of rows, of a float type that is no half type; `first`: they begin with these rows.
  void (*add_rows)(DType dtype, const std::byte* rows, std::int64_t pitch, std::int64_t count, std::int64_t cols,
                   std::byte* to, bool first);
  void (*copy)(std::byte* to, const std::byte* from, std::size_t bytes);  ///< with stores past the caches
  void (*fence)();  ///< ends a thread's part of a job that streams
};

/// The kernels of the level in use.
const TileKernels& tile_kernels();

/// The dtype that a value is computed in: half types in float32.
constexpr DType held(DType t) { return is_half(t) ? DType::kFloat32 : t; }
/// Bytes of its lanes: a bool has four.
constexpr int lane_bytes(DType t) { return t == DType::kFloat64 || t == DType::kInt64 ? 8 : 4; }
/// What a reduction accumulates in: sums of floats in float64.
constexpr DType accumulator(Op op, DType t) {
  if (info(op).signature == Signature::A_B) return DType::kBool;
  if (info(op).signature == Signature::N_N) return held(t);
  return is_float(t) ? DType::kFloat64 : DType::kInt64;
}

namespace baseline {
extern const TileKernels kTileKernels;
}
namespace avx2 {
extern const TileKernels kTileKernels;
}
namespace avx512 {
extern const TileKernels kTileKernels;
}

}  // namespace kfusion::cpu
