// What sweeps reduce: the struct PartialN of each, how elements enter it, and the row's values that come of it.
#include <algorithm>

#include "codegen/expression.hpp"
#include "codegen/printer.hpp"
#include "kfusion/lower/idioms.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {

/// The pair that a reduction belongs to, if it is taken together with the other one.
std::string Printer::pair_of(int i) const {
  if (step(i).pair < 0) return "";
  const Pair& pair = k_.pairs[at(step(i).pair)];
  return (pair.kind == Pair::Kind::kCentred ? "Centred<" : "Shifted<") + accumulator(step(i)) + ">";
}

bool Printer::looks(int sweep) const {
  return std::ranges::any_of(reductions(sweep), [&](int i) { return step(i).pair >= 0; });
}

/// Whether what the step is computed of, from elements, takes longer than to keep it in a register.
bool Printer::takes_long(int i) const {
  const std::vector<bool> sources = sources_of(k_, i);
  for (int s = 0; s <= i; ++s)
    if (sources[at(s)] && step(s).kind == StepKind::kMap && info(step(s).op).cost > OpCost::kDivision) return true;
  return false;
}

/// What the first pass of a sweep leaves in registers for the second one.
std::vector<int> Printer::seen(int sweep) const {
  std::vector<int> found;
  for (const int i : reductions(sweep)) {
    const int x = step(i).arguments[0];
    const bool known = std::ranges::find(found, x) != found.end();
    if (traits_.keeps_exponentials && step(i).pair >= 0 && !is_row(x) && takes_long(x) && !known) found.push_back(x);
  }
  return found;
}

/// When a vector adds nothing to a reduction that picks an element. Nothing for other reductions.
std::string Printer::adds_nothing(int r) const {
  const auto pick = std::ranges::find(k_.picks, r, &Pick::reduction);
  const std::string own = pick == k_.picks.end() ? "" : which_of_vector(pick->equal);
  return own.empty() ? "" : reference(pick->otherwise) + " == 0 && " + own + " >= " + lanes_;
}

/// The reductions of a sweep that most vectors add nothing to.
void Printer::print_picks(int sweep) {
  for (const int r : reductions(sweep)) {
    const std::string nothing = adds_nothing(r);
    if (nothing.empty()) continue;
    out_.open("if (!(" + nothing + ")) {");
    out_.line("#pragma unroll");
    out_.open("for (int j = 0; j < " + lanes_ + "; ++j) {");
    print_elements(sweep, false);
    print_reduction(r);
    out_.close();
    out_.close();
  }
}

/// The maximum of what is held in a half type is found by two elements at once.
bool Printer::looks_at_pairs(int i) const {
  if (!pair_of(i).starts_with("Shifted") || !a_.whole || a_.width % 2 != 0 || columns()) return false;
  const Step& x = step(half_of(step(i).arguments[0]));
  return x.kind == StepKind::kLoad && traits_.held[at(x.index)] && is_half(load(x.index).dtype) && is_vector(x.index);
}

/// What a step converts from a half type, exactly, or the step.
int Printer::half_of(int i) const {
  const Step& s = step(i);
  return s.kind == StepKind::kCast && s.dtype == DType::kFloat32 && is_half(s.from) ? s.arguments[0] : i;
}

void Printer::print_partial(int sweep) {
  const std::vector<int> reduced = reductions(sweep);
  const std::string type = "Partial" + std::to_string(sweep);
  out_.line("");
  if (reduced.empty()) {
    out_.line("using " + type + " = Nothing;");
    out_.line("static KF_DEVICE Nothing partial(Sweep<" + std::to_string(sweep) + ">) { return {}; }");
    return;
  }
  Code start, merge, across, settle;
  const bool ordered = std::ranges::any_of(reduced, [&](int i) { return pair_of(i).starts_with("Centred"); });
  const std::string own_type = columns() ? "Column" + std::to_string(sweep) : type;
  out_.open("struct " + own_type + " {");
  out_.line("static constexpr bool kNothing = false, kSymmetric = " + std::string(ordered ? "false;" : "true;"));
  for (const int i : reduced) {
    const Step& s = step(i);
    const std::string name = names_[at(i)], a = accumulator(s), other = "b." + name;
    if (const std::string pair = pair_of(i); !pair.empty()) {
      out_.line(pair + " " + name + ";");
      merge.line("      " + name + ".merge(" + other + ");");
      across.line("      " + name + ".merge_across(across);");
      settle.line("      " + name + ".settle();");
      continue;
    }
    out_.line((a == "u8" ? "alignas(4) u8 " : a + " ") + name + ";");  // merged in words
    start.line("      v." + std::string(columns() ? "column[j]." : "") + name + " = " + identity(s) + ";");
    merge.line("      " + name + " = " + combined(s, name, other) + ";");
    across.line("      " + name + " = across(" + name + ", [](" + a + " a, " + a + " b) { return " +
                combined(s, "a", "b") + "; });");
  }
  const std::string loop = columns() ? "#pragma unroll\n      for (int j = 0; j < kWidth; ++j) {\n" : "";
  const std::string end = columns() ? "      }\n" : "";
  out_.line("KF_DEVICE void merge(const " + own_type + "& b) {\n" + merge.text() + "    }");
  if (!settle.text().empty() && !columns())  // of many columns, what is merged two by two is under way at once
    out_.line("template <class Across>\n    KF_DEVICE void merge_across(const Across& across) {\n" + across.text() +
              "    }");
  if (columns() || !settle.text().empty()) out_.line("KF_DEVICE void settle() {\n" + settle.text() + "    }");
  out_.close("};");
  if (columns()) out_.line("using " + type + " = Columns<" + own_type + ", kWidth>;");
  out_.line("static KF_DEVICE " + type + " partial(Sweep<" + std::to_string(sweep) + ">) {\n    " + type + " v;\n" +
            loop + start.text() + end + "    return v;\n  }");
}

std::size_t Printer::partial_bytes() const {
  std::size_t largest = 0;
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
    std::size_t bytes = 0, align = 4;
    for (const int i : reductions(sweep)) {
      const std::string a = accumulator(step(i));
      const std::size_t item = a == "u8" ? 1 : a == "double" || a == "i64" ? 8 : 4;
      const int pair = step(i).pair;
      const std::size_t items = pair < 0 ? 1 : k_.pairs[at(pair)].kind == Pair::Kind::kCentred ? 3 : 2;
      align = std::max(align, item);
      const std::size_t begin = std::max(item, std::size_t{4});
      bytes = (bytes + begin - 1) / begin * begin + item * items;
    }
    bytes = (bytes + align - 1) / align * align;
    largest = std::max(largest, bytes * (columns() ? static_cast<std::size_t>(a_.width) : 1));
  }
  return largest;
}

/// `look`: only the first pass of pairs.
void Printer::print_reductions(int sweep, bool look) {
  const std::string guard = a_.whole || columns() ? "" : "if (j < at.count) ";
  for (const int i : reductions(sweep)) {
    const Step& s = step(i);
    const std::string value = reference(s.arguments[0]), own = partial(i);
    if (look && looks_at_pairs(i)) continue;
    if (step(i).pair >= 0) {
      const std::string kept = !look && keeps(sweep) && i == kept_.first ? "kept[j] = " : "";
      out_.line(guard + kept + own + (look ? ".look(" : ".add(") + value + ");", s.label);
    } else if (!look && adds_nothing(i).empty()) {
      print_reduction(i);
    }
  }
}

/// A sum of this type and a product that is added to it, rounded once; empty where step `i` is no such product. Rows
/// with sums of columns need almost as long for their instructions as for memory, and this is one less.
std::string Printer::multiply_add(const std::string& sum, int i, const std::string& type) const {
  const auto is_same = [&](const Step& s) {
    return s.kind == StepKind::kCast && !is_half(s.dtype) && compute_type(s.from) == compute_type(s.dtype);
  };
  while (is_same(step(i))) i = step(i).arguments[0];
  const Step& s = step(i);
  const bool is_product = s.kind == StepKind::kMap && s.op == Op::multiply && is_float(s.dtype) && !is_half(s.dtype);
  if (!traits_.sums || !is_product || type_of(i) != type) return "";
  return "fused_multiply_add(" + reference(s.arguments[0]) + ", " + reference(s.arguments[1]) + ", " + sum + ")";
}

/// One that is of no pair.
void Printer::print_reduction(int i) {
  const Step& s = step(i);
  const std::string guard = a_.whole || columns() ? "" : "if (j < at.count) ", own = partial(i);
  std::string sum = s.op == Op::sum ? multiply_add(own, s.arguments[0], accumulator(s)) : "";
  if (sum.empty()) sum = with_element(s, own, reference(s.arguments[0]));
  out_.line(guard + own + " = " + sum + ";", s.label);
}

void Printer::print_finish(int sweep) {
  const std::string n = std::to_string(sweep);
  const std::string elements =
      columns() ? "static_cast<i64>(p.outer.size)" : "static_cast<i64>(" + this->elements() + ")";
  out_.open("KF_DEVICE void finish(Sweep<" + n + ">, Values& values, const Partial" + n + "& part) const {");
  open_lanes();
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (s.kind != StepKind::kReduce || s_.ready[at(i)] != sweep + 1) continue;
    std::string value = partial(i);
    const bool together = step(i).pair >= 0;
    if (together) {
      const Pair& pair = k_.pairs[at(step(i).pair)];
      const bool centred = pair.kind == Pair::Kind::kCentred, first = pair.first == i;
      value = partial(pair.first) + (first ? (centred ? ".mean" : ".largest") : (centred ? ".squares()" : ".total()"));
      if (first) {  // it is what finish would give
        assign(i, value);
        continue;
      }
    }
    const std::string result = s.op == Op::mean && is_float(s.from)
                                   ? "share_of(" + value + ", " + type_of(i) + "(" + elements + "))"
                                   : finished(s, value, elements);
    const bool same = accumulator(s) == type_of(i);
    assign(i, same ? result : "convert<" + type_of(i) + ">(" + result + ")");
  }
  print_row_steps(sweep + 1);
  close_lanes();
  out_.close();
}

}  // namespace kfusion::codegen
