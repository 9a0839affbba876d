// Kernels whose rows lie along the flat index: row kernels, reductions of everything (one row), and pointwise kernels
// (one row, nothing reduced).
//
// A row goes by in chunks that the first-level cache holds; what they leave of a reduction is combined in the order of
// the chunks, whoever computed them. Threads share out rows, or where there are few the chunks of each row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/fused/rows_and_columns.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
namespace {

class Rows {
 public:
  Rows(const FusedCall& call, int threads)
      : call_(call),
        p_(call.program),
        threads_(threads),
        run_length_(p_.space.run_length > 0 ? p_.space.run_length : p_.space.cols),
        chunks_of_run_(divide_up(run_length_, kChunk)),
        chunks_(chunks_of_run_ * (p_.space.cols / run_length_)) {}

  void run() {
    const std::int64_t rows = p_.space.rows;
    if (p_.kernel.parts() > 0) return in_parts();
    if (p_.reductions.empty() && rows == 1) return pointwise();
    if (rows >= threads_ || chunks_ == 1) {
      parallel_for(rows, threads_, [this](std::int64_t begin, std::int64_t end) { groups(begin, end); });
    } else {
      Worker w(call_);
      std::vector<Partial> partials(partial_count());
      for (std::int64_t r = 0; r < rows; ++r) {
        begin_group(w, r, 1);
        row(w, r, partials.data(), true);
      }
    }
  }

 private:
  std::int64_t run_of(std::int64_t chunk) const { return chunk / chunks_of_run_; }
  std::int64_t begin(std::int64_t chunk) const { return run_of(chunk) * run_length_ + chunk % chunks_of_run_ * kChunk; }
  std::int64_t end(std::int64_t chunk) const {
    return std::min((run_of(chunk) + 1) * run_length_, begin(chunk) + kChunk);
  }
  std::size_t partial_count() const {
    return at(chunks_ == 1 ? p_.group : chunks_) * std::max<std::size_t>(1, p_.reductions.size());
  }

  /// Rows of a group: as far as the last of the outer axes goes on.
  std::int64_t rows_from(std::int64_t row, std::int64_t end) const {
    if (p_.group == 1) return 1;
    const std::int64_t along = p_.space.outer.back();
    return std::min({p_.group, end - row, along - row % along});
  }

  void pointwise() {
    parallel_for(chunks_, threads_, [this](std::int64_t first, std::int64_t last) {
      Worker w(call_);
      w.take_rows();
      w.run(p_.sweeps[0], begin(first), end(last - 1));
    });
  }

  /// Sums of parts of the rows: a part, of 32 rows or more, is one thread's, row after row.
  void in_parts() const {
    constexpr std::int64_t kManyParts = 8;
    const std::int64_t rows = p_.space.rows, parts = p_.kernel.parts();
    parallel_for(
        parts, threads_,
        [&](std::int64_t first, std::int64_t last) {
          Worker w(call_);
          for (std::int64_t part = first; part < last; ++part) {
            w.begin_part(part);
            groups(w, part * rows / parts, (part + 1) * rows / parts);
          }
        },
        kManyParts);
  }

  void groups(std::int64_t begin, std::int64_t end) const {
    if (call_.stream && p_.ahead.run != nullptr) return groups_ahead(begin, end);
    Worker w(call_);
    groups(w, begin, end);
  }
  void groups(Worker& w, std::int64_t begin, std::int64_t end) const {
    std::vector<Partial> partials(partial_count());
    for (std::int64_t r = begin, n; r < end; r += n) {
      n = rows_from(r, end);
      begin_group(w, r, n);
      chunks_ == 1 ? whole_rows(w, n, partials.data()) : row(w, r, partials.data(), false);
      w.leave_group();
    }
  }

  /// The same, each group stored while the next one's moments are taken.
  void groups_ahead(std::int64_t begin, std::int64_t end) const {
    Worker a(call_), b(call_);
    Worker *now = &a, *next = &b;
    std::vector<Partial> partials(partial_count());
    std::int64_t rows = rows_from(begin, end);
    begin_group(*now, begin, rows);
    for (std::int64_t c = 0; c < chunks_; ++c) {
      now->go_to_run(run_of(c));
      now->run_moments(p_.phases[0].moments, this->begin(c), this->end(c));
      if (chunks_ > 1) fold_moments(*now, partials.data(), c);
    }
    finish_moments(*now, rows, partials.data());
    for (std::int64_t r = begin; r < end;) {
      const std::int64_t after = r + rows, next_rows = after < end ? rows_from(after, end) : 0;
      if (next_rows > 0) begin_group(*next, after, next_rows);
      for (std::int64_t c = 0; c < chunks_; ++c) {
        now->go_to_run(run_of(c));
        if (next_rows == 0) {
          now->run_group(p_.sweeps[2], this->begin(c), this->end(c));
          continue;
        }
        next->go_to_run(run_of(c));
        now->run_ahead(*next, this->begin(c), this->end(c));
        if (chunks_ > 1) fold_moments(*next, partials.data(), c);
      }
      row_program(*now, 3);
      now->leave_group();
      if (next_rows > 0) finish_moments(*next, next_rows, partials.data());
      now->hand_lines_to(*next);
      std::swap(now, next);
      r = after, rows = next_rows;
    }
  }
  void begin_group(Worker& w, std::int64_t row, std::int64_t rows) const {
    w.go_to_group(row, rows);
    row_program(w, 0);
    w.take_rows();
  }
  void fold_moments(const Worker& w, Partial* partials, std::int64_t chunk) const {
    Partial* const mine = partials + at(chunk) * p_.reductions.size();
    fold(w, p_.sweeps[0], mine), fold(w, p_.sweeps[1], mine);
  }
  void finish_moments(Worker& w, std::int64_t rows, Partial* partials) const {
    const Phase& phase = p_.phases[0];
    if (chunks_ > 1) return finish_phase(w, phase, partials);
    for (int sweep = phase.first; sweep <= phase.last; ++sweep) finish_sweep(w, sweep, rows, partials);
  }

  /// Rows of one chunk, as many at once as a group has.
  void whole_rows(Worker& w, std::int64_t rows, Partial* partials) const {
    for (const Phase& phase : p_.phases) {
      const bool at_once = phase.moments.run != nullptr;
      if (at_once) w.run_moments(phase.moments, 0, p_.space.cols);
      for (int sweep = phase.first; sweep <= phase.last; ++sweep) {
        const TileProgram& p = p_.sweeps[at(sweep)];
        if (!at_once && !p.empty()) w.run_group(p, 0, p_.space.cols);
        finish_sweep(w, sweep, rows, partials);
      }
    }
  }
  void finish_sweep(Worker& w, int sweep, std::int64_t rows, Partial* partials) const {
    for (const int k : p_.sweeps[at(sweep)].reductions) finish_rows(w, p_.reductions[at(k)], rows, partials);
    row_program(w, sweep + 1);
  }

  /// From the accumulators of each row to its value.
  void finish_rows(Worker& w, const Reduction& r, std::int64_t rows, Partial* partials) const {
    const std::byte* accumulators = w.scratch(r.place);
    std::int64_t pitch = p_.kernels->vector_bytes;
    if (r.lanes > 1) {
      r.scalar.fold(accumulators, r.lanes, pitch, rows, partials);
      accumulators = partials[0].bytes, pitch = sizeof(Partial);
    }
    r.scalar.finish_rows(accumulators, pitch, p_.space.cols, w.scratch(p_.homes[at(r.step)].place), rows);
  }

  /// A row of several chunks.
  void row(Worker& w, std::int64_t r, Partial* partials, bool together) const {
    for (const Phase& phase : p_.phases) {
      if (together) {
        parallel_for(chunks_, threads_, [&](std::int64_t first, std::int64_t last) {
          Worker mine(call_, w);
          mine.go_to_group(r, 1);
          mine.take_rows();
          chunks(mine, phase, first, last, partials);
        });
      } else {
        chunks(w, phase, 0, chunks_, partials);
      }
      finish_phase(w, phase, partials);
    }
  }
  void finish_phase(Worker& w, const Phase& phase, Partial* partials) const {
    for (const Phase::Pair& pair : phase.pairs) merge(pair, partials);
    for (int sweep = phase.first; sweep <= phase.last; ++sweep) {
      finish(w, sweep, partials, sweep == phase.last && !phase.pairs.empty());
      row_program(w, sweep + 1);
    }
  }

  void row_program(Worker& w, int sweep) const {
    const TileProgram& p = p_.rows[at(sweep)];
    if (!p.empty()) w.run_row_values(p);
  }

  void chunks(Worker& w, const Phase& phase, std::int64_t first, std::int64_t last, Partial* partials) const {
    const TileProgram& p = p_.sweeps[at(phase.first)];
    if (p.reductions.empty()) return p.empty() ? void() : in_runs(w, p, first, last);
    for (std::int64_t c = first; c < last; ++c) {
      w.go_to_run(run_of(c));
      Partial* const mine = partials + at(c) * p_.reductions.size();
      if (phase.moments.run != nullptr) {
        w.run_moments(phase.moments, begin(c), end(c));
        fold_moments(w, partials, c);
        continue;
      }
      sweep(w, p, c, mine);
      if (phase.pairs.empty()) continue;
      for (const Phase::Pair& pair : phase.pairs) set_value(w, pair.first, mine[pair.first], end(c) - begin(c));
      sweep(w, p_.sweeps[at(phase.last)], c, mine);
    }
  }

  /// What reduces nothing: all chunks of a run at once.
  void in_runs(Worker& w, const TileProgram& p, std::int64_t first, std::int64_t last) const {
    for (std::int64_t c = first, next; c < last; c = next) {
      next = std::min(last, (run_of(c) + 1) * chunks_of_run_);
      w.go_to_run(run_of(c));
      w.run_group(p, begin(c), end(next - 1));
    }
  }

  void sweep(Worker& w, const TileProgram& p, std::int64_t chunk, Partial* partials) const {
    w.run_group(p, begin(chunk), end(chunk));
    fold(w, p, partials);
  }

  void fold(const Worker& w, const TileProgram& p, Partial* partials) const {
    for (const int k : p.reductions) {
      const Reduction& r = p_.reductions[at(k)];
      r.scalar.fold(w.scratch(r.place), r.lanes, 0, 1, partials + k);
    }
  }

  /// Combines the chunks and puts the result in its home.
  void finish(Worker& w, int sweep, Partial* partials, bool merged) const {
    for (const int k : p_.sweeps[at(sweep)].reductions) {
      const auto step = static_cast<std::int64_t>(p_.reductions.size());
      if (!merged) combine_all(p_.reductions[at(k)].scalar, partials + k, chunks_, step);
      set_value(w, k, partials[k], p_.space.cols);
    }
  }

  void set_value(Worker& w, int reduction, const Partial& value, std::int64_t n) const {
    const Reduction& r = p_.reductions[at(reduction)];
    r.scalar.finish(value.bytes, n, w.scratch(p_.homes[at(r.step)].place), 1);
  }

  /// The value of the first reduction of n elements, as the second has seen it: rounded to its type.
  double centre(int reduction, Partial value, std::int64_t n) const {
    const Reduction& r = p_.reductions[at(reduction)];
    std::byte lane[8];
    r.scalar.finish(value.bytes, n, lane, 1);
    if (lane_bytes(p_.kernel.steps[at(r.step)].dtype) == 8) return *reinterpret_cast<const double*>(lane);
    return static_cast<double>(*reinterpret_cast<const float*>(lane));
  }

  /// Puts the second reduction's chunks right, each taken about its own first, and leaves their sum in the first place.
  void merge(const Phase::Pair& pair, Partial* partials) const {
    const auto stride = static_cast<std::int64_t>(p_.reductions.size());
    const Reduction& first = p_.reductions[at(pair.first)];
    std::vector<Partial> firsts(at(chunks_));
    for (std::int64_t c = 0; c < chunks_; ++c) firsts[at(c)] = partials[c * stride + pair.first];
    std::vector<Partial> whole = firsts;
    combine_all(first.scalar, whole.data(), chunks_, 1);
    const double total = centre(pair.first, whole[0], p_.space.cols);
    for (std::int64_t c = 0; c < chunks_; ++c) {
      const std::int64_t n = end(c) - begin(c);
      const double own = centre(pair.first, firsts[at(c)], n);
      Partial& second = partials[c * stride + pair.second];
      const double value = second.as_double();
      second = Partial::of(pair.kind == Pair::Kind::kCentred
                               ? value + recentred(own, total, firsts[at(c)].as_double() / static_cast<double>(n), n)
                               : rescaled(value, own, total));
    }
    combine_all(p_.reductions[at(pair.second)].scalar, partials + pair.second, chunks_, stride);
  }

  /// What the sum of (v - own)^2 lacks to that of (v - total)^2, for n values of that mean (Chan, Golub and LeVeque
  /// 1983, for a centre that is rounded).
  static double recentred(double own, double total, double mean, std::int64_t n) {
    return own == total ? 0 : static_cast<double>(n) * (own - total) * (2 * mean - own - total);
  }

  /// The sum of exp(v - total) of that of exp(v - own), total >= own.
  static double rescaled(double sum, double own, double total) {
    if (own == total) return sum;
    return own == -INFINITY ? 0 : sum * std::exp(own - total);
  }

  const FusedCall& call_;
  const FusedProgram& p_;
  int threads_;
  std::int64_t run_length_, chunks_of_run_;  ///< of a row; all of it where it is in one piece
  std::int64_t chunks_;
};

}  // namespace

void run_rows(const FusedCall& call, int threads) { Rows(call, threads).run(); }

}  // namespace kfusion::cpu
