// The innermost loop of columns: rows of a sweep, one after the other, into accumulators of the same columns.
#pragma once
#include <memory>
#include <vector>

#include "cpu/codegen/columns/column_plan.hpp"
#include "cpu/codegen/columns/column_reductions.hpp"
#include "cpu/codegen/columns/transposed.hpp"

namespace kfusion::cpu::ir {

class ColumnRows {
 public:
  ColumnRows(const Form& form, Addresses& at, Elements& elements, const ColumnPlan& plan);

  /// Before the first loop, of groups of so many rows.
  void begin(const Number& count);
  /// `count` rows of a sweep from where the addresses are. `row`: from the first of the tile's.
  void take(int sweep, const Window& window, const Number& row, const Number& count, Carry& carry, bool past_caches);
  void store(int t, const Window& window, bool past_caches);

  using Accumulators = std::vector<std::unique_ptr<ColumnAccumulators>>;
  const Accumulators& reductions(int sweep) const { return reductions_[static_cast<std::size_t>(sweep)]; }
  const std::vector<Transposed>& transposed() const { return transposed_; }

 private:
  struct Moving {
    const Layout* layout;
    Number step;
  };
  /// What is fetched: from elements before `limit` so many bytes ahead, from others so many.
  struct Fetched {
    const Layout* layout;
    Number limit, ahead, ahead_of_last;
  };
  std::int64_t item_of(int s) const {
    const DType type = form_.kernel.step(s).dtype;
    return static_cast<std::int64_t>(item_bytes(compute_dtype(type)));
  }
  std::int64_t kept_item(std::int64_t k) const { return item_of(plan_.kept[static_cast<std::size_t>(k)]); }
  Number transpose(const Layout& p);
  int chains_of(int sweep) const;
  void push_rows(const Number& row, Carry& carry) const;
  void next_row(int sweep, const Window& window, Carry& carry, std::size_t each, std::size_t first, bool past_caches);
  void row_of_columns(int sweep, const Window& window, Carry& carry, bool past_caches);
  Fetched fetched(const Moving& m) const;
  void fetch_ahead(const Window& window) const;

  const Form& form_;
  Addresses& at_;
  Elements& elements_;
  const ColumnPlan& plan_;
  const std::int64_t tile_;               ///< columns
  Number count_ = 1;                      ///< rows of a group
  std::vector<Accumulators> reductions_;  ///< by sweep
  std::vector<Moving> moving_;            ///< elsewhere in each row
  std::vector<Fetched> fetched_;
  std::vector<Transposed> transposed_;
  std::vector<Pointer> kept_rows_;  ///< of the row that is taken
};

}  // namespace kfusion::cpu::ir
