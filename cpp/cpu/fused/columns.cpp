// Kernels that reduce over outer axes: each element along the flat index has accumulators of its own.
//
// A block of columns goes through all rows, and through all sweeps while the cache holds it. Threads share out blocks,
// or where there are few columns parts of the rows, cut at fixed places; what they leave is combined in their order.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cpu/fused/rows_and_columns.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kSplitElements = 256 * 1024;
constexpr std::int64_t kMaxSplits = 64;
constexpr std::int64_t kManyColumns = 4096;  // that threads share

class Columns {
 public:
  Columns(const FusedCall& call, int threads)
      : call_(call), p_(call.program), threads_(threads), block_(p_.block), splits_(parts_of_rows()) {
    if (splits_ == 1 && p_.together == 1) block_ = share_of_columns();
    blocks_ = divide_up(p_.space.cols, block_);
  }

  void run() {
    if (splits_ == 1)
      return parallel_for(blocks_, threads_, [this](std::int64_t first, std::int64_t last) {
        Worker w(call_);
        for (std::int64_t b = first; b < last; ++b) block(w, b);
      });
    Worker w(call_);
    for (std::int64_t b = 0; b < blocks_; ++b) block(w, b);
  }

 private:
  std::int64_t begin(std::int64_t b) const { return b * block_; }
  std::int64_t end(std::int64_t b) const { return std::min(p_.space.cols, (b + 1) * block_); }

  /// As many for every number of threads: the order of a sum depends on it.
  std::int64_t parts_of_rows() const {
    if (p_.space.cols >= kManyColumns) return 1;
    const std::int64_t elements = p_.space.rows * std::min(p_.space.cols, p_.block);
    return std::clamp<std::int64_t>(elements / kSplitElements, 1, kMaxSplits);
  }

  /// Columns of a block such that threads have as many blocks each, or about: blocks are of whole tiles.
  std::int64_t share_of_columns() const {
    const std::int64_t blocks = threads_ * divide_up(p_.space.cols, threads_ * p_.block);
    const std::int64_t tile = p_.sweeps[0].per_tile(Width::kFull);
    return std::min(p_.block, round_up(divide_up(p_.space.cols, blocks), tile));
  }

  void block(Worker& w, std::int64_t b) {
    w.shift_arrays(begin(b));
    row_program(w, 0, b);
    const bool searched = is_searched(b);
    if (searched) search(w, b);
    for (int sweep = 0; sweep < static_cast<int>(p_.sweeps.size()); ++sweep) {
      if (!searched || sweep >= 2) splits_ == 1 ? rows(w, sweep, b, 0, p_.space.rows) : in_parts(w, sweep, b);
      for (const int k : p_.sweeps[at(sweep)].reductions) finish(w, p_.reductions[at(k)], b);
      row_program(w, sweep + 1, b);
    }
  }

  bool is_searched(std::int64_t b) const {
    return p_.search.run != nullptr && (end(b) - begin(b)) * 4 >= p_.kernels->vector_bytes;
  }

  /// The first two sweeps as one; what parts of the rows have found is combined in their order.
  void search(Worker& w, std::int64_t b) const {
    const Source& x = p_.sources[at(p_.search.source)];
    const std::int64_t count = end(b) - begin(b);
    const int lane = lane_bytes(x.dtype);
    std::vector<std::vector<std::byte>> found(at(splits_));
    const auto part = [&](std::int64_t k) {
      found[at(k)].resize(at(2 * count * lane));
      p_.search.run({call_.loads[x.array] + x.layout.offset + begin(b) * x.layout.item, x.layout.outer[0],
                     p_.space.rows * k / splits_, p_.space.rows * (k + 1) / splits_, count, found[at(k)].data(),
                     found[at(k)].data() + count * lane});
    };
    if (splits_ == 1)
      part(0);
    else
      parallel_for(splits_, threads_, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t k = first; k < last; ++k) part(k);
      });
    combine_found(found, held(x.dtype), count);
    leave(w, p_.reductions[at(p_.search.extremes)], found[0].data(), lane, count);
    leave(w, p_.reductions[at(p_.search.positions)], found[0].data() + count * lane, lane, count);
  }

  void combine_found(std::vector<std::vector<std::byte>>& found, DType held, std::int64_t count) const {
    const auto combine = [&]<class T>(T) {
      using Position = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
      T* const to = reinterpret_cast<T*>(found[0].data());
      auto* const to_positions = reinterpret_cast<Position*>(to + count);
      for (std::size_t k = 1; k < found.size(); ++k) {
        const T* const from = reinterpret_cast<const T*>(found[k].data());
        const auto* const positions = reinterpret_cast<const Position*>(from + count);
        for (std::int64_t i = 0; i < count; ++i) {
          const bool is_nan = from[i] != from[i] && to[i] == to[i];
          if (is_nan || (p_.search.largest ? from[i] > to[i] : from[i] < to[i]))
            to[i] = from[i], to_positions[i] = positions[i];
        }
      }
    };
    if (held == DType::kFloat32) return combine(float());
    if (held == DType::kFloat64) return combine(double());
    return held == DType::kInt32 ? combine(std::int32_t()) : combine(std::int64_t());
  }

  /// Puts numbers of `lane` bytes, of integers the lower ones, where a reduction's accumulators are: in registers.
  void leave(Worker& w, const Reduction& r, const std::byte* from, int lane, std::int64_t count) const {
    const std::int64_t per_register = p_.kernels->vector_bytes / r.scale;
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(
          w.scratch(r.place + i / per_register * p_.kernels->vector_bytes + i % per_register * r.scalar.lane_bytes),
          from + i * lane, at(r.scalar.lane_bytes));
  }

  void row_program(Worker& w, int sweep, std::int64_t b) const {
    if (p_.rows[at(sweep)].empty()) return;
    w.go_to(0);
    w.run(p_.rows[at(sweep)], begin(b), end(b));
  }

  void rows(Worker& w, int sweep, std::int64_t b, std::int64_t first, std::int64_t last) const {
    const TileProgram& p = p_.sweeps[at(sweep)];
    if (p.empty()) return;
    if (p.takes_rows && end(b) - begin(b) >= p.per_tile(Width::kFull)) return several_rows(w, p, b, first, last);
    for (std::int64_t r = first; r < last; ++r) {
      w.go_to(r);
      w.run(p, begin(b), end(b), r == first);
    }
  }

  /// Some rows at once, as far as the last of the outer axes goes on. What is left of the block behind whole tiles is a
  /// tile that overlaps the one before it, with accumulators of its own. (Such programs have dense accumulators.)
  void several_rows(Worker& w, const TileProgram& p, std::int64_t b, std::int64_t first, std::int64_t last) const {
    const std::int64_t tile = p.per_tile(Width::kFull), along = p_.space.outer.back();
    const std::int64_t rest = (end(b) - begin(b)) % tile, overlap = tile - rest;
    for (std::int64_t r = first, n; r < last; r += n) {
      n = std::min({kRowsAtOnce, last - r, along - r % along});
      w.go_to(r);
      w.run_rows(p, begin(b), end(b) - rest, r == first, n);
      if (rest == 0) continue;
      w.move_accumulators(overlap);
      w.run_rows(p, end(b) - tile, end(b), r == first, n);
      w.move_accumulators(-overlap);
    }
    for (const int k : p.reductions) {
      const Reduction& r = p_.reductions[at(k)];
      std::byte* const to = w.scratch(r.place + (end(b) - rest - begin(b)) * r.scale);
      std::memmove(to, to + overlap * r.scale, at(rest * r.scale));
    }
  }

  void in_parts(Worker& w, int sweep, std::int64_t b) {
    const std::vector<int>& reductions = p_.sweeps[at(sweep)].reductions;
    std::vector<std::vector<std::vector<std::byte>>> parts(reductions.size());  // by reduction, by part: accumulators
    for (auto& of_reduction : parts) of_reduction.resize(at(splits_));
    parallel_for(splits_, threads_, [&](std::int64_t first, std::int64_t last) {
      Worker mine(call_, w);
      mine.shift_arrays(begin(b));
      for (std::int64_t part = first; part < last; ++part) {
        rows(mine, sweep, b, p_.space.rows * part / splits_, p_.space.rows * (part + 1) / splits_);
        for (std::size_t k = 0; k < reductions.size(); ++k) {
          const Reduction& r = p_.reductions[at(reductions[k])];
          parts[k][at(part)].assign(mine.scratch(r.place), mine.scratch(r.place + array_bytes(r, b)));
        }
      }
    });
    for (std::size_t k = 0; k < reductions.size(); ++k) {
      const Reduction& r = p_.reductions[at(reductions[k])];
      combine_all(r.scalar, parts[k]);
      std::memcpy(w.scratch(r.place), parts[k][0].data(), parts[k][0].size());
    }
  }

  /// Of the registers that hold a block's accumulators.
  std::int64_t array_bytes(const Reduction& r, std::int64_t b) const {
    const std::int64_t per_register = p_.kernels->vector_bytes / r.scale;
    return divide_up(end(b) - begin(b), per_register) * p_.kernels->vector_bytes;
  }

  /// From accumulators to values, as many at a time as lie side by side in both: wide registers hold narrow lanes in
  /// their lower half.
  void finish(Worker& w, const Reduction& r, std::int64_t b) const {
    const Home& home = p_.homes[at(r.step)];
    if (p_.together > 1) combine_together(w, r);
    const std::int64_t count = end(b) - begin(b), vector = p_.kernels->vector_bytes;
    const bool dense = r.scale == r.scalar.lane_bytes && home.scale == lane_bytes(p_.kernel.steps[at(r.step)].dtype);
    const std::int64_t run = dense ? count : vector / std::max(r.scale, home.scale);
    for (std::int64_t e = 0; e < count; e += run)
      r.scalar.finish(w.scratch(r.place + e * r.scale), p_.space.rows * p_.together,
                      w.scratch(home.place + e * home.scale), std::min(run, count - e));
  }

  /// Of rows that lie side by side: each of their columns gets the accumulator of all.
  void combine_together(Worker& w, const Reduction& r) const {
    const std::int64_t columns = p_.space.cols / p_.together, bytes = columns * r.scale;
    std::byte* const first = w.scratch(r.place);
    for (std::int64_t k = 1; k < p_.together; ++k) r.scalar.combine(first, first + k * bytes, columns);
    for (std::int64_t k = 1; k < p_.together; ++k) std::memcpy(first + k * bytes, first, at(bytes));
  }

  const FusedCall& call_;
  const FusedProgram& p_;
  int threads_;
  std::int64_t block_, splits_, blocks_ = 0;
};

}  // namespace

void run_columns(const FusedCall& call, int threads) { Columns(call, threads).run(); }

}  // namespace kfusion::cpu
