// Which keys a query sees, as far as steps of positions say it: what a mask excludes is not even multiplied.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::codegen {

/// Steps that are integers of positions and numbers alone, all of less than 2^24 so that a float holds them.
class Positions {
 public:
  explicit Positions(const Kernel& k);
  bool has(int step) const { return ranges_[static_cast<std::size_t>(step)].has_value(); }
  /// A comparison of two, as one of floats.
  bool compares(int step) const;

 private:
  struct Range {
    double least, most;
  };
  std::optional<Range> range_of(const Step& s) const;

  const Kernel& k_;
  std::vector<std::optional<Range>> ranges_;
};

/// Keys up to (`upper`), or from, row x the query + from.
struct Bound {
  bool upper;
  std::int64_t row, from;
};

/// A score without what masks and constant factors do to it.
struct Peeled {
  int base = 0;              ///< step
  std::vector<int> factors;  ///< steps: constants above 0; `divides` says which divide
  std::vector<bool> divides;
  struct Mask {
    int condition;
    bool seen;  ///< what a key is seen where the condition is
  };
  std::vector<Mask> masks;  ///< elsewhere the score is -inf
};

/// Scores as two functions: of all keys, and of those that all masks of positions let through.
struct Visible {
  Peeled all, seen;
  std::vector<Bound> bounds;  ///< of the keys that are seen
};
Visible visible_keys(const Kernel& scores, int score, const Positions& positions);

}  // namespace kfusion::codegen
