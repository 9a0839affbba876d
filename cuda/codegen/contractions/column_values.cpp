#include "codegen/contractions/column_values.hpp"

#include <algorithm>

namespace kfusion::codegen {
namespace {

constexpr std::size_t kMostValues = 6;

class Columns {
 public:
  Columns(const Contraction& c, const Boxes& boxes) : c_(c), k_(c.epilogue), boxes_(boxes) {
    for (const Step& s : k_.steps) {
      of_column_.push_back(depends_on_column(s));
      costs_.push_back(of_column_.back() && costs(s));
    }
  }

  std::vector<int> run() {
    for (const Store& s : k_.stores) find(s.step);
    const bool pay = std::ranges::any_of(found_, [&](int i) { return costs_[at(i)]; });
    if (!pay || found_.size() > kMostValues) return {};
    std::ranges::sort(found_);
    return found_;
  }

 private:
  const Step& step(int i) const { return k_.step(i); }
  bool is_constant(int i) const { return step(i).kind == StepKind::kConstant; }

  bool lies_along_columns(const Operand& o) const { return tile_strides(o, false).row == 0; }

  bool depends_on_column(const Step& s) const {
    const auto& steps = s.arguments;
    switch (s.kind) {
      case StepKind::kLoad:
        return c_.product_of(k_.loads[at(s.index)]) < 0 && lies_along_columns(k_.loads[at(s.index)]);
      case StepKind::kIota:
        return lies_along_columns(k_.iotas[at(s.index)]);
      case StepKind::kMap:
      case StepKind::kCast:
        return std::ranges::all_of(steps, [&](int i) { return is_constant(i) || of_column_[at(i)]; }) &&
               std::ranges::any_of(steps, [&](int i) { return !is_constant(i); });
      default:
        return false;
    }
  }

  /// More than to take what arrived.
  bool costs(const Step& s) const {
    if (s.kind == StepKind::kLoad) return std::ranges::count(boxes_.vectors, s.index) == 0;
    return s.kind != StepKind::kCast || costs_[at(s.arguments[0])];
  }

  void find(int i) {
    if (seen_.size() < k_.steps.size()) seen_.resize(k_.steps.size(), false);
    if (seen_[at(i)] || is_constant(i)) return;
    seen_[at(i)] = true;
    if (of_column_[at(i)] && compute_type(step(i).dtype) == std::string_view("float")) {
      found_.push_back(i);
      return;
    }
    for (const int a : step(i).arguments) find(a);
  }

  const Contraction& c_;
  const Kernel& k_;
  const Boxes& boxes_;
  std::vector<bool> of_column_, costs_, seen_;  ///< by step
  std::vector<int> found_;
};

}  // namespace

std::vector<int> column_values(const Contraction& c, const Boxes& boxes) {
  if (c.reduces != Reduces::kNothing) return {};
  return Columns(c, boxes).run();
}

}  // namespace kfusion::codegen
