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
    Kept kept{e, difference, -1, pair.first, s_.ready[at(pair.second)] - 1};
    kept.sources = sources_of(argument(difference));
    for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i)
      if (kept.sources[at(i)] && has_room(i, step(e).dtype)) kept.load = i;
    if (kept.load < 0 || !can_keep(kept)) continue;
    kept.divisor = divisor_of_all(kept);
    return kept;
  }
  return {};
}

/// The element's step and all that it is computed from, of the same element.
std::vector<bool> Printer::sources_of(int i) const {
  std::vector<bool> found(k_.steps.size());
  found[at(i)] = !is_row(i);
  for (; i >= 0; --i)
    for (const int argument : step(i).arguments)
      if (found[at(i)] && !is_row(argument)) found[at(argument)] = true;
  return found;
}

/// Whether a vector of such values can take the place of what the step loads.
bool Printer::has_room(int i, DType dtype) const {
  const Step& s = step(i);
  return s.kind == StepKind::kLoad && traits_.held[at(s.index)] && is_vector(s.index) && load(s.index).dtype == dtype;
}

bool Printer::can_keep(const Kept& kept) const {
  const Step &e = step(kept.exponential), &d = step(kept.difference);
  if (e.op != Op::exp || d.op != Op::subtract) return false;
  const auto is_source = [&](int i) { return kept.sources[at(i)]; };
  const auto known = [&](int user) {
    const std::vector<int>& arguments = step(user).arguments;
    const bool knows_x = std::ranges::any_of(arguments, is_source) && !is_source(user) && user != kept.difference;
    return knows_x || (std::ranges::count(arguments, kept.difference) > 0 && user != kept.exponential);
  };
  for (int sweep = kept.sweep + 1; sweep < s_.sweeps; ++sweep)
    if (std::ranges::any_of(element_steps(k_, sweep), known) || std::ranges::any_of(reductions(sweep), known))
      return false;
  return std::ranges::none_of(k_.stores,
                              [&](const Store& s) { return is_source(s.step) || s.step == kept.difference; });
}

/// What later sweeps divide the exponentials by, if that is all that they are used for; else -1.
int Printer::divisor_of_all(const Kept& kept) const {
  int divisor = -1;
  for (int sweep = kept.sweep + 1; sweep < s_.sweeps; ++sweep) {
    const auto takes_it = [&](int reduction) { return step(reduction).arguments[0] == kept.exponential; };
    if (std::ranges::any_of(reductions(sweep), takes_it)) return -1;
    for (const int i : element_steps(k_, sweep)) {
      const Step& s = step(i);
      if (std::ranges::count(s.arguments, kept.exponential) == 0) continue;
      if (!is_shared_quotient(s) || (divisor >= 0 && divisor != s.arguments[1])) return -1;
      divisor = s.arguments[1];
    }
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
