// The steps of a product's epilogue as text: what computes each, and in which order.
#include <algorithm>

#include "codegen/contractions/epilogue_printer.hpp"
#include "codegen/expression.hpp"

namespace kfusion::codegen {

// ---- expressions ----------------------------------------------------------------------------------------------------

std::string EpiloguePrinter::reference(int i) const {
  return (step(i).kind == StepKind::kConstant ? "p." : "") + names_[at(i)];
}

/// 1 + tanh(x), which loses nothing where tanh is near -1: 2 / (1 + exp(-2 x)).
bool EpiloguePrinter::is_one_plus_tanh(const Step& s) const {
  if (s.kind != StepKind::kMap || s.op != Op::add || !is_half(s.dtype)) return false;
  for (const int which : {0, 1}) {
    const Step &one = step(s.arguments[at(which)]), &other = step(s.arguments[at(1 - which)]);
    if (one.kind != StepKind::kConstant || other.kind != StepKind::kMap || other.op != Op::tanh) continue;
    const Constant& c = k_.constants[at(one.index)];
    if (c.parameter < 0 && c.value == 1) return true;
  }
  return false;
}

bool EpiloguePrinter::is_used_once(int i) const {
  std::ptrdiff_t uses = std::ranges::count(k_.stores, i, &Store::step);
  for (const Step& s : k_.steps) uses += std::ranges::count(s.arguments, i);
  return uses == 1;
}

/// A sum or difference with a product that nothing else uses, rounded once: half types do not show it. Empty else.
std::string EpiloguePrinter::multiply_add(const Step& s) const {
  const bool sum = s.op == Op::add, difference = s.op == Op::subtract;
  if (s.kind != StepKind::kMap || !is_rough(s) || (!sum && !difference)) return "";
  for (const std::size_t which : {0, 1}) {
    const int i = s.arguments[which], other = s.arguments[1 - which];
    const Step& product = step(i);
    if (product.kind != StepKind::kMap || product.op != Op::multiply || !is_rough(product)) continue;
    if (!is_used_once(i) || product.level != s.level || is_of_column(i)) continue;
    const bool negative = difference && which == 1;
    return "fmaf(" + std::string(negative ? "-" : "") + reference(product.arguments[0]) + ", " +
           reference(product.arguments[1]) + ", " + (difference && which == 0 ? "-" : "") + reference(other) + ")";
  }
  return "";
}

/// Of maps and casts.
std::string EpiloguePrinter::map(const Step& s) const {
  const auto argument = [&](std::size_t i) { return i < s.arguments.size() ? reference(s.arguments[i]) : ""; };
  if (s.kind == StepKind::kCast) {
    if (is_half(s.dtype)) return "rounded<" + storage_type(s.dtype) + ">(" + argument(0) + ")";
    return "convert<" + compute_type(s.dtype) + ">(" + argument(0) + ")";
  }
  if (is_one_plus_tanh(s)) {
    const bool first = step(s.arguments[0]).op == Op::tanh && step(s.arguments[0]).kind == StepKind::kMap;
    return "quick_one_plus_tanh(" + reference(step(s.arguments[first ? 0 : 1]).arguments[0]) + ")";
  }
  if (std::string text = multiply_add(s); !text.empty()) return text;
  if (scores_ && s.op == Op::divide && is_rough(s) && step(s.arguments[1]).kind == StepKind::kConstant)
    return argument(0) + " * (1.0f / " + argument(1) + ")";
  const bool quick = info(s.op).has(kQuickPerRow) ? s.level == Level::kRow && k_.kind != Pattern::kPointwise
                                                  : is_rough(s) && info(s.op).has(kQuick);
  if (quick) return "quick_" + std::string(name(s.op)) + "(" + argument(0) + ")";
  const Meaning meanings[] = {{"x", argument(0)}, {"y", argument(1)}, {"z", argument(2)}, {"T", compute_type(s.from)}};
  const std::string text = with(info(s.op).expression, meanings);
  return s.dtype == DType::kBool && s.from == DType::kBool ? "(" + text + ") != 0" : text;
}

/// Of a step at column `col`, read only `inside`.
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
  if (in_pair_ && is_of_blocks(s)) return "words_" + names_[at(i)] + ".at(" + reference(s.arguments[0]) + ")";
  return map(s);
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

bool EpiloguePrinter::is_of_blocks(const Step& s) const {
  const auto is_constant = [this](int i) { return step(i).kind == StepKind::kConstant; };
  return s.kind == StepKind::kMap && s.op == Op::philox && is_constant(s.arguments[1]) && is_constant(s.arguments[2]);
}

void EpiloguePrinter::open_pair(const std::vector<int>& steps) {
  for (const int i : steps)
    if (const Step& s = step(i); is_of_blocks(s))
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
