// Exponentials that one sweep sums and later ones use again: whether there are any, how they take the place of what
// they are of, and by which factor the later sweeps have them.
#include <algorithm>

#include "codegen/printer.hpp"

namespace kfusion::codegen {

/// exp(x - first), where the later sweeps know x by nothing else.
Kept Printer::find_kept() const {
  for (const Pair& pair : k_.pairs) {
    if (pair.kind != Pair::Kind::kShifted || step(pair.second).pair < 0) continue;
    const auto argument = [&](int i) { return step(i).arguments.empty() ? i : step(i).arguments[0]; };
    const int e = argument(pair.second), difference = argument(e);
    Kept kept{e, difference, argument(difference), pair.first, s_.ready[at(pair.second)] - 1};
    if (!can_keep(kept)) continue;
    kept.divisor = divisor_of_all(kept);
    return kept;
  }
  return {};
}

bool Printer::can_keep(const Kept& kept) const {
  const Step &e = step(kept.exponential), &d = step(kept.difference), &x = step(kept.load);
  if (e.op != Op::exp || d.op != Op::subtract || x.kind != StepKind::kLoad || !traits_.held[at(x.index)]) return false;
  if (!is_vector(x.index) || e.dtype != load(x.index).dtype) return false;
  for (int sweep = kept.sweep + 1; sweep < s_.sweeps; ++sweep)
    for (const int i : element_steps(k_, sweep)) {
      const auto uses = [&](int argument) { return std::ranges::count(step(i).arguments, argument) > 0; };
      if ((uses(kept.load) && i != kept.difference) || (uses(kept.difference) && i != kept.exponential)) return false;
    }
  return std::ranges::none_of(k_.stores,
                              [&](const Store& s) { return s.step == kept.load || s.step == kept.difference; });
}

/// What later sweeps divide the exponentials by, if that is all that they are used for; else -1.
int Printer::divisor_of_all(const Kept& kept) const {
  int divisor = -1;
  for (int sweep = kept.sweep + 1; sweep < s_.sweeps; ++sweep)
    for (const int i : element_steps(k_, sweep)) {
      const Step& s = step(i);
      if (std::ranges::count(s.arguments, kept.exponential) == 0) continue;
      if (!is_shared_quotient(s) || (divisor >= 0 && divisor != s.arguments[1])) return -1;
      divisor = s.arguments[1];
    }
  const bool stored = std::ranges::any_of(k_.stores, [&](const Store& s) { return s.step == kept.exponential; });
  return stored ? -1 : divisor;
}

/// Whether a later sweep has the step's value from what is kept, by one factor.
bool Printer::is_of_kept(int i) const {
  if (kept_.divisor < 0) return i == kept_.exponential;
  return std::ranges::count(step(i).arguments, kept_.exponential) > 0;
}

void Printer::print_keep() {
  const DType stored = load(step(kept_.load).index).dtype;
  out_.line(held_name(kept_.load) + " = pack_vector<" + storage_type(stored) + ">(kept);");
  out_.line("held.shift = " + partial(kept_.first) + ".largest;");
}

/// By which a vector's exponentials are brought from the thread's maximum to the row's, and divided.
void Printer::print_factor(int sweep) {
  if (!has_kept(sweep)) return;
  const std::string factor = "Shifted<" + type_of(kept_.exponential) +
                             (kept_.divisor < 0 ? ">::result_scale" : ">::scale") + "(held.shift, " +
                             reference(kept_.first) + ")";
  out_.line("const " + type_of(kept_.exponential) + " factor = " +
            (kept_.divisor < 0 ? factor : "quotient(" + factor + ", values." + divisor_of(kept_.divisor) + ")") + ";");
}

}  // namespace kfusion::codegen
