// A sweep over the elements of a row, or of a piece of one.
#pragma once
#include <functional>
#include <vector>

#include "cpu/codegen/elements/fetches.hpp"
#include "cpu/codegen/elements/walk.hpp"
#include "cpu/codegen/rows/row_plan.hpp"

namespace kfusion::cpu::ir {

/// The elements [begin, end) of each of these runs of a row.
struct Range {
  Number first_run = 0, last_run = 1, begin = 0, end = 0;
  Number runs() const { return last_run - first_run; }
  Number length() const { return end - begin; }
  Number count() const { return runs() * length(); }
};

class RowSweeps {
 public:
  RowSweeps(const Form& form, Addresses& at, Elements& elements)
      : form_(form), at_(at), elements_(elements), fetches_(form, at) {}

  Fetches& fetches() { return fetches_; }

  /// Values that sweeps keep lie from here on, for each of these steps `pitch` bytes.
  void keep_at(const std::vector<int>& steps, const Pointer& memory, const Number& pitch);
  void find_none();

  /// Begins the reductions of `s` and takes up the elements; what they have then is in `carry`.
  void take(Sweep& s, const Range& range, Carry& carry, bool may_stream);
  /// Comes from what take() left, where that can be told from the sums, else from the elements again.
  RowMoments::Moments moments(const RowMoments& m, const Range& range, const Carry& carry);
  /// Sums of parts of the rows are those of none.
  void clear_sums(const Range& row);
  /// Later sweeps find what `s` has kept.
  void find_kept_by(const Sweep& s);

 private:
  using Body = std::function<void()>;
  void for_runs(const std::vector<int>& wanted, const Range& range, Carry& carry, const Body& body);
  void begin_run(const std::vector<int>& wanted, const Number& kept_offset);
  void elements(const Sweep& s, const Number& begin, const Number& end, Carry& carry, bool may_stream);
  void chunks(Sweep& s, const Range& range, Carry& carry);
  Carry pivots(const Sweep& s, const Range& range);
  void take_again(const RowMoments& m, const Range& range, Carry& values);
  void take_window(const Sweep& s, const Window& window, Carry& carry, bool past_caches);
  Pointer kept(int step) const;

  const Form& form_;
  Addresses& at_;
  Elements& elements_;
  Fetches fetches_;
  std::vector<int> kept_steps_, found_;
  Pointer kept_;
  Number pitch_ = 0, run_offset_ = 0;
};

}  // namespace kfusion::cpu::ir
