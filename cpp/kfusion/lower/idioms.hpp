// What steps are together: found here once, so that executors and printers need not search.
#pragma once
#include <optional>
#include <vector>

#include "kfusion/graph/match.hpp"
#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// Sets Step::is, picks, searches and exponentials of a kernel that has schedules; set_schedule() calls it.
void annotate(Kernel& k);

/// The value of a step that is a constant and the same in every call.
std::optional<double> number_of(const Kernel& k, int step);

/// Steps of a kernel as values of patterns (graph/match.hpp).
struct StepReader {
  const Kernel& k;

  Op op(int step) const;
  int argument(int step, std::size_t i) const { return k.step(step).arguments[i]; }
  std::optional<double> number(int step) const { return number_of(k, step); }
};

/// By step: whether element step `x` is it or is computed from it, of the same element.
std::vector<bool> sources_of(const Kernel& k, int x);

}  // namespace kfusion
