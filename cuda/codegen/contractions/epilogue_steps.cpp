// The steps of a product's epilogue as text: what computes each, and in which order.
#include <algorithm>

#include "codegen/contractions/epilogue_printer.hpp"
#include "codegen/expression.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {

// ---- expressions ----------------------------------------------------------------------------------------------------

std::string EpiloguePrinter::reference(int i) const {
  return (step(i).kind == StepKind::kConstant ? "p." : "") + names_[at(i)];
}

/// A sum or difference with a product, rounded once. Empty where it has none that is computed here.
std::string EpiloguePrinter::multiply_add(const Step& s) const {
  for (const std::size_t which : {0, 1}) {
    if (!s.is.products[which] || is_of_column(s.arguments[which])) continue;
    const int product = s.arguments[which];
    const bool difference = s.op == Op::subtract;
    return "fmaf(" + std::string(difference && which == 1 ? "-" : "") + reference(step(product).arguments[0]) + ", " +
           reference(step(product).arguments[1]) + ", " + (difference && which == 0 ? "-" : "") +
           reference(s.arguments[1 - which]) + ")";
  }
  return "";
}

std::string EpiloguePrinter::formula(const Step& s) const {
  const auto value = [this](int i) { return reference(i); };
  if (s.is.tanh >= 0) return "quick_one_plus_tanh(" + value(step(s.arguments[at(s.is.tanh)]).arguments[0]) + ")";
  if (std::string text = multiply_add(s); !text.empty()) return text;
  if (k_.rough && s.is.quick_quotient) return value(s.arguments[0]) + " * (1.0f / " + value(s.arguments[1]) + ")";
  return codegen::formula(s, value);
}

/// The value of a step at column `col`; loads read only where `inside` is true.
std::string EpiloguePrinter::value(int i, const std::string& col, const std::string& inside) const {
  const Step& s = step(i);
  if (s.kind == StepKind::kLoad) {
    const std::string& name = loads_[at(s.index)];
    return "element(p." + name + " + " + offset(name, k_.loads[at(s.index)], col) + ", " + inside + ")";
  }
  if (s.kind == StepKind::kIota) {
    const std::string& name = iotas_[at(s.index)];
    return "convert<" + type_of(i) + ">(p." + name + "_from + " + offset(name, k_.iotas[at(s.index)], col) + ")";
  }
  if (in_pair_ && s.is.random_block) return "words_" + names_[at(i)] + ".at(" + reference(s.arguments[0]) + ")";
  return formula(s);
}

// ---- the order of steps ---------------------------------------------------------------------------------------------

/// What `of` are computed from, themselves included, up to reductions: the steps of that level. Without columns: nor
/// what these are computed from.
std::vector<int> EpiloguePrinter::needed(const std::vector<int>& of, Level level, bool with_columns) const {
  std::vector<bool> wanted(k_.steps.size(), false);
  for (const int i : of) wanted[at(i)] = true;
  std::vector<int> found;
  for (auto i = static_cast<int>(k_.steps.size()); i-- > 0;) {
    if (!wanted[at(i)] || is_reduction(i)) continue;
    if (step(i).level == level && step(i).kind != StepKind::kConstant) found.push_back(i);
    if (!with_columns && is_of_column(i)) continue;
    for (const int a : step(i).arguments) wanted[at(a)] = true;
  }
  std::ranges::reverse(found);
  return found;
}

void EpiloguePrinter::print_steps(const std::vector<int>& steps, const std::string& col, const std::string& inside) {
  for (const int i : steps)
    if (!is_product(i))
      out_.line("[[maybe_unused]] const " + type_of(i) + " " + names_[at(i)] + " = " + value(i, col, inside) + ";",
                step(i).label);
}

void EpiloguePrinter::open_pair(const std::vector<int>& steps) {
  for (const int i : steps)
    if (const Step& s = step(i); s.is.random_block)
      out_.line("[[maybe_unused]] RandomWords words_" + names_[at(i)] + "(" + reference(s.arguments[1]) + ", " +
                reference(s.arguments[2]) + ");");
  out_.line("#pragma unroll");
  out_.open("for (int x = 0; x < 2; ++x) {");
  in_pair_ = true;
}

void EpiloguePrinter::close_pair() {
  out_.close();
  in_pair_ = false;
}

}  // namespace kfusion::codegen
