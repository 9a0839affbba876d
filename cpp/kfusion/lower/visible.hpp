// Which keys a query sees, as far as steps of positions say it: what a mask excludes is not even multiplied.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// Steps that are integers of positions and numbers alone, all of less than 2^24 so that a float holds them.
class PositionSteps {
 public:
  explicit PositionSteps(const Kernel& k);
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
struct KeyBound {
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
  std::vector<KeyBound> bounds;  ///< of the keys that are seen
};
Visible visible_keys(const Kernel& scores, int score, const PositionSteps& positions);

/// The step of the scores, of the epilogue of Attention::scores.
int score_of(const Kernel& scores);

/// The bounds of keys beyond which `where` puts -inf in the place of a score, whatever that is.
std::vector<KeyBound> bounds_of_keys(const Kernel& scores, int score);

/// Keys [begin, end) that some of the queries [first, last] may see, of `keys` in all; 0 to 0 where none is.
struct KeySpan {
  std::int64_t begin, end;
};
KeySpan seen_keys(const std::vector<KeyBound>& bounds, std::int64_t first, std::int64_t last, std::int64_t keys);

}  // namespace kfusion
