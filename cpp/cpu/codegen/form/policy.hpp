// Where the structure of generated code depends on the CPU: one place for what was measured.
#pragma once
#include <algorithm>

#include "cpu/codegen/math/random_words.hpp"
#include "cpu/isa.hpp"
#include "cpu/machine_code/target.hpp"
#include "cpu/platform.hpp"
#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu::ir {

/// Longer chains take LLVM's register allocator more than linear time: 20,000 operations in one function 16 s.
inline constexpr int kMostOperations = 500;

/// What a map takes, in simple instructions.
inline int operations_of(Op op) { return info(op).cost == OpCost::kSimple ? 1 : 20; }

inline int operations_of(const Step& s) { return s.kind == StepKind::kMap ? operations_of(s.op) : 1; }
inline int operations_of(const Kernel& k) {
  int n = 0;
  for (const Step& s : k.steps) n += operations_of(s);
  return n;
}

/// A link that such a chain is cut into has few enough to be written for several registers in turn.
inline constexpr int kLinkOperations = 100;
/// Elements of a row that go through all links before the next ones, where their values stay in the cache.
inline constexpr std::int64_t kLinkElements = 1024, kLinkBytes = 1 << 18;

/// A lone reduction: with AVX2 it does not spill four registers either, and the largest of each of 128 rows of 1024
/// takes 0.7 of the time. Less of a shorter row is taken by four whole registers.
inline constexpr int kFewOperations = 5;
inline constexpr std::int64_t kRowsOfTwoRegisters = 128;

/// Registers that each operation is written for in turn, so that a core has independent instructions at hand. With
/// 32 vector registers four do not spill functions, with 16 two: exp with AVX2 takes 11.1 us by fours, 14.0 one by one.
inline int registers_at_once(const Kernel& k, const TargetFacts& t) {
  if (std::ranges::any_of(k.steps, [](const Step& s) { return s.is.random_block; })) return kRegistersOfBlocks;
  const int most = t.avx512 || t.neon ? 4 : 2;
  const int operations = operations_of(k);
  if (t.avx2 && operations <= kFewOperations && k.cols() > kRowsOfTwoRegisters) return 4;
  return operations > 200 ? 1 : operations > 100 ? std::min(most, 2) : most;
}

/// Whether the instructions of long functions are written for registers in turn. With AVX2 exp takes 0.90 of the time,
/// gelu 0.88, sigmoid 0.90, softmax 0.92; with AVX-512 0.95 to 1, but log 1.11.
inline bool is_better_interleaved(Op op, const TargetFacts& t) { return info(op).cost != OpCost::kSimple && !t.avx512; }

/// Whether what is next is fetched ahead (of rows row_plan.cpp says by which sweep): fewer bytes stay in the
/// second-level cache, where that only takes time. Softmax of 4096 columns takes 0.7 of the time with AVX-512, 0.9 with
/// AVX2, layer norm of 512 columns 0.7 to 0.8. Softmax's rows go to the second-level cache: where the first one holds
/// no second row, 8192 columns take 1.4 times as long.
inline bool is_from_memory(const Kernel& k) { return k.bytes() > 3 * static_cast<std::int64_t>(second_level_cache()); }
/// Whether the first-level cache has room for the next row beside this one until the last of several sweeps. Rows of
/// 16 KB that are fetched to 32 KB take 1.2 times as long as to the second level, to 48 KB 0.9 times.
inline bool has_room_for_next(std::int64_t row_bytes) {
  return 3 * row_bytes <= static_cast<std::int64_t>(first_level_cache());
}
/// So many bytes ahead; where rows are longer, the next one.
inline constexpr std::int64_t kBytesAhead = 8 * 1024;

/// Lines of four pages are fetched in turn where the CPU is Intel's: reading one page after the other, a core of a Xeon
/// has fewer lines on their way. From memory, of a copy: exp(x) y + 1 1.26 to 1.12, tanh 1.39 to 1.12, log 1.5 to 1.15,
/// twenty operations 1.42 to 1.10, layernorm of 4096 columns 1.42 to 1.20, of 16384 1.58 to 1.29, softmax 1.7 to 1.5.
/// AMD's Zen does as well without prefetches in maps, and a Zen 3 without pages in turn in rows.
inline bool fetches_pages_in_turn() { return is_of_intel(); }
inline constexpr std::int64_t kPage = 4096, kPagesInTurn = 4, kBytesInTurn = kPage * kPagesInTurn;

/// Whether results may go past the caches. AVX2 stores half lines, which do so at once or not at all: where more than a
/// few operations lie between them, exp of floats takes 9.7 ms instead of 4.9, gelu 14.6 instead of 9.7, twenty
/// operations 14.8 instead of 4.5, and of half types 2x + 3y 5.9 instead of 5.3.
inline bool may_stream(const Kernel& k, const TargetFacts& t) {
  constexpr int kFew = 12;
  if (!t.avx2 || t.avx512 || k.kind != Pattern::kPointwise) return true;
  return operations_of(k) <= kFew &&
         std::ranges::all_of(k.stores, [](const Store& s) { return item_bytes(s.to.dtype) >= 4; });
}

/// Elements of a row that one call takes, so that threads share long rows.
inline constexpr std::int64_t kPiece = 4096;

/// Bytes of a line of the caches.
inline constexpr std::int64_t kLine = 64;

/// Rows so short leave registers half empty: elements of several rows are taken at once.
inline constexpr std::int64_t kShortestRow = 32;

/// Bytes of a copy of so many elements, with a register behind them.
template <class N>
N copy_pitch(const N& elements) {
  return (elements * 8 + 575) & -64;
}

/// Rows that are reduced: the end of each takes as long as some registers of elements.
inline constexpr std::int64_t kShortestReducedRow = 64;
/// Terms that one float of each lane and register adds up before they become doubles.
inline constexpr int kFloatSums = 8;
/// A row of no more chunks is searched as a whole: noting where an extreme was met takes longer.
inline constexpr int kSearchedChunks = 2;
/// Longer ones leave the second-level cache between two sweeps.
inline constexpr std::int64_t kLongestRow = 65536;
/// Where there are fewer rows, threads share each, unless it is short.
inline constexpr std::int64_t kFewRows = 16;
/// Elements of a row that is shared or long, that are reduced at a time.
inline constexpr std::int64_t kRowPiece = 16384;

// ---- lanes across rows ----

/// Whether lanes lie along the last kept axis.
inline bool goes_across(const Kernel& k) {
  if (k.kind == Pattern::kColumns) return true;
  return k.kind == Pattern::kRows && !k.kept.empty() && k.parts() == 0 && k.cols() < kShortestReducedRow;
}
/// Rows of a tile that stay in the cache together. Where there are more, blocks of columns are taken some rows at a
/// time.
inline constexpr std::int64_t kRowsOfTile = 64;
inline bool goes_in_tiles(const Kernel& k) { return k.cols() <= kRowsOfTile; }
/// Elements of short rows that change places at once. Few elements of rows that lie one after the other are picked
/// instead.
constexpr int side_of_squares(int item, int lanes) { return std::min(item >= 4 ? 4 : 8, lanes); }
inline constexpr std::int64_t kFewElements = 4;

/// Columns of a block, and bytes of one whose rows the cache holds until they are swept again.
inline constexpr std::int64_t kBlockColumns = 2048, kLeastBlockColumns = 128, kBlockBytes = 512 * 1024;
/// Rows in the cache that go through a block before the next do: at least so many, or so many bytes.
inline constexpr std::int64_t kLeastRowsAtOnce = 8, kLeastBytesAtOnce = 32 * 1024;
/// Few columns whose rows follow each other in memory are taken some rows side by side, as one row: so many of them
/// that least of the lanes stay empty. Columns that are so taken, and at most of such a row.
inline constexpr std::int64_t kFewColumns = 256, kSideBySideColumns = 2048;
/// Rows of few columns that are added at once, and how many go through their block before the next do.
inline constexpr int kChains = 4;
inline constexpr std::int64_t kRowsOfChains = 512;
/// Few columns are taken in parts of the rows of so many elements each, as many for every number of threads.
inline constexpr std::int64_t kManyColumns = 4096, kElementsOfPart = 256 * 1024, kMostParts = 64;

/// Rows from memory that are longer than a tile go through it one by one: the sum of 5000 x 1024 floats takes 0.6 of
/// the time of 8 that are read at once, a little of each. What is ahead is brought to the first-level cache. But
/// accumulators have to stay there meanwhile: 48 KB hold those of 4096 columns; with 32 KB sums of 1536 columns take
/// 1.1 of the time of 8 rows at once, of 2048 columns 1.6 and of 4096 columns 2.0.
inline bool goes_row_by_row(std::int64_t columns, std::int64_t tile) {
  constexpr std::int64_t kSmall = 32 * 1024, kDouble = 8;
  const auto first_level = static_cast<std::int64_t>(first_level_cache());
  const std::int64_t accumulators = kDouble * (columns <= kManyColumns ? columns : kBlockColumns);
  return columns > tile && accumulators <= (first_level > kSmall ? first_level / 3 * 2 : first_level / 8 * 3);
}

}  // namespace kfusion::cpu::ir
