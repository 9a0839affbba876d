// What each sweep over a row computes, and what it keeps for those after it.
#pragma once
#include <optional>
#include <vector>

#include "cpu/codegen/rows/moments.hpp"
#include "cpu/codegen/rows/reductions.hpp"

namespace kfusion::cpu::ir {

struct Sweep {
  std::vector<RowReduction> reductions;
  std::vector<RowMoments> moments;
  std::vector<RowReduction> searches, picks;  ///< taken of few elements, before the sweep (row_finds.hpp)
  std::vector<int> stores;                    ///< of elements
  std::vector<int> wanted;                    ///< steps
  std::vector<int> keeps;                     ///< steps whose elements later sweeps find
  std::optional<int> share;                   ///< which half of it, where two sweeps share it
  std::optional<Fetch> fetches;               ///< where the next row is brought meanwhile, if rows come from memory
};

struct RowPlan {
  explicit RowPlan(const Form& form);

  std::vector<Sweep> sweeps;
  std::vector<Sweep> seconds;  ///< by sweep: what is taken of each piece once the sweep has its firsts of pairs
  std::vector<int> kept;       ///< steps, each of which has a row of scratch memory

 private:
  void choose_kept(const Form& form);
  void choose_fetching(const Form& form);
};

/// Bytes of scratch memory for a value that a row keeps, and for all of them.
inline constexpr std::int64_t kRowSlack = 256;  ///< a register of the widest type, and up to the next line
inline Number kept_pitch(const Number& cols) { return (cols * 8 + kRowSlack) & -64; }
inline std::int64_t scratch_bytes(const RowPlan& p, std::int64_t cols) {
  return static_cast<std::int64_t>(p.kept.size()) * (cols * 8 + kRowSlack);
}

}  // namespace kfusion::cpu::ir
