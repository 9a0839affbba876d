// Runs the links of a long chain (long_chains.hpp) by the programs of their kernels.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/codegen/chains/long_chains.hpp"
#include "cpu/codegen/form/form.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {

/// Bytes that a kernel moves, and as many again for every few steps.
inline std::int64_t work_of(const Kernel& k) {
  constexpr std::int64_t kStepsPerPass = 16;  // that take about as long as memory does
  const auto steps = std::ssize(k.steps) + std::ssize(k.stores);
  return k.bytes() + std::max(k.bytes(), 4 * k.rows() * k.cols()) * steps / kStepsPerPass;
}

/// f(row, last row, begin, end) for all of so many rows, of which threads share long ones by pieces.
template <class F>
void share_rows(std::int64_t rows, std::int64_t cols, std::int64_t piece, int threads, const F& f) {
  const std::int64_t pieces = divide_up(cols, piece);
  if (threads == 1) return f(0, rows, 0, cols);
  if (rows >= 8 * threads || pieces == 1)
    return parallel_for(rows, threads, [&](std::int64_t first, std::int64_t last) { f(first, last, 0, cols); });
  parallel_for(rows * pieces, threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last;) {
      const std::int64_t row = p / pieces, next = std::min(last, (row + 1) * pieces);
      f(row, row + 1, (p - row * pieces) * piece, std::min(cols, (next - row * pieces) * piece));
      p = next;
    }
  });
}

/// A long chain: some elements of a row go through all links, or a row of a kernel that takes whole ones; or all
/// elements go through all links but the last.
template <class Program>
class LinksBy {
 public:
  explicit LinksBy(const Kernel& k) : kernel(k), chain_(chain_of(k)) {
    for (const Link& l : chain_.links) {
      programs_.push_back(std::make_unique<const Program>(l.kernel));
      scratch_bytes_ = std::max(scratch_bytes_, programs_.back()->scratch_bytes_of_call());
    }
    const Form& form = programs_[0]->code(false).form();
    const std::int64_t fits = kLinkBytes / (kBufferItem * std::max(1, chain_.buffers));
    const std::int64_t whole = form.joins_rows ? form.extents().back() : 1;
    chunk_ = std::max<std::int64_t>(1, std::clamp<std::int64_t>(fits, 64, kLinkElements) / whole) * whole;
    buffer_bytes_ = kBufferItem * (goes_by_rows() ? kernel.cols() : chunk_) + 64;
  }

  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters, int threads) const {
    if (kernel.rows() * kernel.cols() == 0) return;
    const Program& map = *programs_[0];
    with_calls(parameters, [&](const std::vector<Call>& calls) {
      const std::int64_t bytes = whole_bytes() * chain_.whole_buffers;
      const Buffer whole = bytes > 0 ? Buffer(static_cast<std::size_t>(bytes)) : Buffer();
      const auto part = [&](std::int64_t row, std::int64_t last, std::int64_t begin, std::int64_t end) {
        OfThread mine(*this, calls, loads, stores, whole.data());
        for (; row < last; ++row) goes_by_rows() ? mine.row(row) : mine.elements(row, begin, end);
      };
      goes_by_rows() ? share_rows(kernel.rows(), kernel.cols(), kernel.cols(), threads, part)
                     : share_rows(map.rows, map.cols, map.piece(), threads, part);
      if (!chain_.is_whole) return;
      OfThread rest(*this, calls, loads, stores, whole.data());
      programs_.back()->run_rows(programs_.back()->code(false).functions(), rest.last(), threads, false);
    });
  }
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const {
    with_calls(parameters, [&](const std::vector<Call>& calls) {
      OfThread(*this, calls, loads, stores, nullptr).elements(0, begin, end);
    });
  }
  const std::vector<std::unique_ptr<const Program>>& programs() const { return programs_; }

  const Kernel kernel;

 private:
  bool goes_by_rows() const { return kernel.kind != Pattern::kPointwise && !chain_.is_whole; }
  std::int64_t whole_bytes() const { return kBufferItem * kernel.rows() * kernel.cols() + 64; }

  /// f(calls of all links), which are for no arrays yet. No recursion: there may be hundreds.
  template <class F>
  void with_calls(const double* parameters, const F& f) const {
    std::vector<std::unique_ptr<typename Program::Numbers>> numbers;
    std::vector<Call> calls;
    for (const auto& p : programs_) {
      numbers.push_back(std::make_unique<typename Program::Numbers>());
      calls.push_back(p->call_with(*numbers.back(), parameters));
    }
    f(calls);
    for (std::size_t i = 0; i < calls.size(); ++i) numbers[i]->fault.check(programs_[i]->kernel.tables);
  }

  /// What one thread has of them.
  class OfThread {
   public:
    OfThread(const LinksBy& of, std::vector<Call> calls, const std::byte* const* loads, std::byte* const* stores,
             std::byte* whole)
        : of_(of),
          whole_(whole),
          memory_(static_cast<std::size_t>(of.buffer_bytes_ * of.chain_.buffers + of.scratch_bytes_)),
          calls_(std::move(calls)) {
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        const Link& link = of.chain_.links[i];
        functions_.push_back(of.programs_[i]->code(false).functions()[0]);
        loads_.emplace_back(), stores_.emplace_back();
        for (const int l : link.loads) loads_.back().push_back(l < 0 ? nullptr : loads[l]);
        for (const int t : link.stores) stores_.back().push_back(t < 0 ? nullptr : stores[t]);
      }
      for (std::size_t i = 0; i < calls_.size(); ++i)
        calls_[i].loads = loads_[i].data(), calls_[i].stores = stores_[i].data(),
        calls_[i].scratch = buffer(of.chain_.buffers);
    }

    void elements(std::int64_t row, std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; b += of_.chunk_) {
        place_buffers(-b);
        run(calls_.size() - (of_.chain_.is_whole ? 1 : 0), row, b, std::min(end, b + of_.chunk_));
      }
    }
    /// A kernel of rows takes all of it, run after run.
    void row(std::int64_t row) {
      const Program &map = *of_.programs_[0], &last = *of_.programs_.back();
      const std::int64_t runs = of_.kernel.cols() / map.cols;
      for (std::int64_t r = 0; r < runs; ++r) {
        place_buffers(r * map.cols);
        for (std::int64_t b = 0; b < map.cols; b += of_.chunk_)
          run(calls_.size() - 1, row * runs + r, b, std::min(map.cols, b + of_.chunk_));
      }
      place_buffers(0);
      functions_.back()(&calls_.back(), row, row + 1, 0, last.cols);
    }

    /// The last link, of all elements; valid as long as this object.
    const Call& last() {
      place_buffers(0);
      return calls_.back();
    }

   private:
    std::byte* buffer(int s) { return memory_.data() + of_.buffer_bytes_ * s; }
    /// Element 0 of arrays that buffers stand for lies so many elements before what the buffers have.
    void place_buffers(std::int64_t elements) {
      const auto at = [&](int s, const Operand& o) {
        const int whole = ~s - of_.chain_.buffers;
        if (whole >= 0) return whole_ + of_.whole_bytes() * whole;
        return buffer(~s) + elements * static_cast<std::int64_t>(item_bytes(o.dtype));
      };
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        const Link& link = of_.chain_.links[i];
        for (std::size_t l = 0; l < link.kernel.loads.size(); ++l)
          if (link.loads[l] < 0) loads_[i][l] = at(link.loads[l], link.kernel.loads[l]);
        for (std::size_t t = 0; t < link.stores.size(); ++t)
          if (link.stores[t] < 0) stores_[i][t] = at(link.stores[t], link.kernel.stores[t].to);
      }
    }
    void run(std::size_t links, std::int64_t row, std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < links; ++i) functions_[i](&calls_[i], row, row + 1, begin, end);
    }

    const LinksBy& of_;
    std::byte* whole_;  ///< buffers of all elements
    Buffer memory_;
    std::vector<Call> calls_;
    std::vector<Function> functions_;
    std::vector<std::vector<const std::byte*>> loads_;
    std::vector<std::vector<std::byte*>> stores_;
  };

  Chain chain_;
  std::vector<std::unique_ptr<const Program>> programs_;
  std::int64_t scratch_bytes_ = 0, buffer_bytes_ = 0, chunk_ = 0;
};

}  // namespace kfusion::cpu::ir
