// Exponentials that one sweep sums and later ones use again: whether there are any, how they take the place of what
// they are of, and by which factor the later sweeps have them.
#include <algorithm>

#include "codegen/printer.hpp"
#include "kfusion/lower/idioms.hpp"

namespace kfusion::codegen {

/// The first that have room.
Kept Printer::find_kept() const {
  for (const Exponentials& e : k_.exponentials) {
    const Pair& pair = k_.pairs[at(e.pair)];
    Kept kept{e, -1, pair.first, s_.ready[at(pair.second)] - 1, sources_of(k_, e.x)};
    for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i)
      if (kept.sources[at(i)] && has_room(i, step(e.exp).dtype)) kept.load = i;
    if (kept.load >= 0) return kept;
  }
  return {};
}

/// Whether a vector of such values can take the place of what the step loads.
bool Printer::has_room(int i, DType dtype) const {
  const Step& s = step(i);
  return s.kind == StepKind::kLoad && traits_.held[at(s.index)] && is_vector(s.index) && load(s.index).dtype == dtype;
}

/// Whether a later sweep has the step's value from what is kept, by one factor.
bool Printer::is_of_kept(int i) const {
  if (kept_.of.divisor < 0) return i == kept_.of.exp;
  return std::ranges::count(step(i).arguments, kept_.of.exp) > 0;
}

void Printer::print_keep() {
  const DType stored = load(step(kept_.load).index).dtype;
  out_.line(held_name(kept_.load) + " = pack_vector<" + storage_type(stored) + ">(kept);");
  out_.line("held.shift = " + partial(kept_.first) + ".largest;");
}

/// Prints the factor that brings a vector's exponentials from the thread's maximum to the row's, and divides them.
void Printer::print_factor(int sweep) {
  if (!has_kept(sweep)) return;
  const std::string factor = "Shifted<" + type_of(kept_.of.exp) +
                             (kept_.of.divisor < 0 ? ">::result_scale" : ">::scale") + "(held.shift, " +
                             reference(kept_.first) + ")";
  out_.line("const " + type_of(kept_.of.exp) + " factor = " +
            (kept_.of.divisor < 0 ? factor : "quotient(" + factor + ", values." + divisor_of(kept_.of.divisor) + ")") +
            ";");
}

}  // namespace kfusion::codegen
