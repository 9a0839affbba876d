// What a kernel of arrays in memory fetches before it is needed.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "cpu/codegen/elements/elements.hpp"

namespace kfusion::cpu::ir {

class Fetches {
 public:
  Fetches(const Form& form, const Addresses& at) : form_(form), at_(at) {}

  /// From now on take() fetches what lies at the same place of the next row, or of a later one where rows are short.
  void begin();
  /// From now on take() fetches what lies some pages ahead in the row, where pages are fetched in turn.
  void begin_within_row();
  /// `share`: which half of the next row, where two sweeps share it.
  void take(const Window& window, Fetch how, std::optional<int> share = std::nullopt) const;

  /// Stores past the caches wait for the line that a row's results share with the next row's, which goes by the caches.
  void shared_lines() const;

 private:
  void take_pages(const Pointer& here, const Number& ahead, std::int64_t bytes, Fetch how,
                  std::optional<int> share) const;
  Number to_next_row(const Layout& p) const { return at_.integer(form_.stride(p, form_.row_axes - 1)); }

  const Form& form_;
  const Addresses& at_;
  std::vector<std::pair<const Layout*, Number>> ahead_;
};

}  // namespace kfusion::cpu::ir
