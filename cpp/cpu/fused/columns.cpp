// Kernels that reduce over outer axes: each element along the flat index has accumulators of its own.
//
// A block of columns goes through all rows, and through all sweeps while the cache holds it. Where there are few
// columns the rows are split at fixed places, and what the parts leave is combined in their order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/fused/run.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kSplitElements = 256 * 1024;
constexpr std::int64_t kMaxSplits = 64;

class Columns {
 public:
  Columns(const FusedCall& call, int threads)
      : call_(call),
        p_(call.program),
        threads_(threads),
        blocks_((p_.space.cols + p_.block - 1) / p_.block),
        splits_(blocks_ >= kMaxSplits
                    ? 1
                    : std::clamp<std::int64_t>(p_.space.rows * p_.space.cols / blocks_ / kSplitElements, 1,
                                               std::min(kMaxSplits, std::max<std::int64_t>(p_.space.rows, 1)))) {}

  void run() {
    if (splits_ == 1)
      return parallel_for(blocks_, threads_, [this](std::int64_t first, std::int64_t last) {
        Worker w(call_);
        for (std::int64_t b = first; b < last; ++b) block(w, b);
      });
    Worker w(call_);
    parts_.resize(at(splits_));
    for (std::int64_t b = 0; b < blocks_; ++b) block(w, b);
  }

 private:
  std::int64_t begin(std::int64_t b) const { return b * p_.block; }
  std::int64_t end(std::int64_t b) const { return std::min(p_.space.cols, (b + 1) * p_.block); }

  void block(Worker& w, std::int64_t b) {
    w.shift_arrays(begin(b));
    row_program(w, 0, b);
    for (int sweep = 0; sweep < static_cast<int>(p_.sweeps.size()); ++sweep) {
      if (splits_ == 1)
        rows(w, sweep, b, 0, p_.space.rows);
      else
        in_parts(w, sweep, b);
      for (const int k : p_.sweeps[at(sweep)].reductions) finish(w, p_.reductions[at(k)], b);
      row_program(w, sweep + 1, b);
    }
  }

  void row_program(Worker& w, int sweep, std::int64_t b) const {
    if (p_.rows[at(sweep)].empty()) return;
    w.go_to(0);
    w.run(p_.rows[at(sweep)], begin(b), end(b));
  }

  void rows(Worker& w, int sweep, std::int64_t b, std::int64_t first, std::int64_t last) const {
    const TileProgram& p = p_.sweeps[at(sweep)];
    if (p.empty()) return;
    for (std::int64_t r = first; r < last; ++r) {
      w.go_to(r);
      w.run(p, begin(b), end(b), r == first);
    }
  }

  void in_parts(Worker& w, int sweep, std::int64_t b) {
    const std::vector<int>& reductions = p_.sweeps[at(sweep)].reductions;
    parallel_for(splits_, threads_, [&](std::int64_t first, std::int64_t last) {
      Worker mine(call_, w);
      mine.shift_arrays(begin(b));
      for (std::int64_t part = first; part < last; ++part) {
        rows(mine, sweep, b, p_.space.rows * part / splits_, p_.space.rows * (part + 1) / splits_);
        parts_[at(part)].clear();
        for (const int k : reductions) {
          const std::byte* const from = mine.scratch(p_.reductions[at(k)].place);
          parts_[at(part)].insert(parts_[at(part)].end(), from, from + array_bytes(p_.reductions[at(k)]));
        }
      }
    });
    std::int64_t offset = 0;
    for (const int k : reductions) {
      combine(w, p_.reductions[at(k)], offset, end(b) - begin(b));
      offset += array_bytes(p_.reductions[at(k)]);
    }
  }

  std::int64_t array_bytes(const Reduction& r) const { return p_.block * r.scale; }

  /// Where a lane of element e of an array lies: registers hold whole tiles' parts, wide ones half.
  std::int64_t lane(std::int64_t e, int scale, int bytes) const {
    const std::int64_t per_register = p_.kernels->vector_bytes / scale;
    return scale == bytes ? e * bytes : e / per_register * p_.kernels->vector_bytes + e % per_register * bytes;
  }

  void combine(Worker& w, const Reduction& r, std::int64_t offset, std::int64_t count) const {
    std::vector<Partial> partials(at(splits_));
    for (std::int64_t e = 0; e < count; ++e) {
      const std::int64_t place = lane(e, r.scale, r.scalar.lane_bytes);
      for (std::int64_t part = 0; part < splits_; ++part)
        std::memcpy(partials[at(part)].bytes, parts_[at(part)].data() + offset + place, at(r.scalar.lane_bytes));
      combine_all(r.scalar, partials.data(), splits_, 1);
      std::memcpy(w.scratch(r.place + place), partials[0].bytes, at(r.scalar.lane_bytes));
    }
  }

  /// From accumulators to values.
  void finish(Worker& w, const Reduction& r, std::int64_t b) const {
    const Home& home = p_.homes[at(r.step)];
    const int bytes = lane_bytes(p_.kernel.steps[at(r.step)].dtype);
    for (std::int64_t e = 0; e < end(b) - begin(b); ++e) {
      Partial a;
      std::memcpy(a.bytes, w.scratch(r.place + lane(e, r.scale, r.scalar.lane_bytes)), at(r.scalar.lane_bytes));
      r.scalar.finish(a, p_.space.rows, w.scratch(home.place + lane(e, home.scale, bytes)));
    }
  }

  const FusedCall& call_;
  const FusedProgram& p_;
  int threads_;
  std::int64_t blocks_, splits_;
  std::vector<std::vector<std::byte>> parts_;  ///< accumulators of each part of the rows
};

}  // namespace

void run_columns(const FusedCall& call, int threads) { Columns(call, threads).run(); }

}  // namespace kfusion::cpu
