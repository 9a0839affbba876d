#include "codegen/attention/score_printer.hpp"

#include <algorithm>

#include "codegen/skeleton.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {
namespace {

bool is_even(const Extents& strides) {
  return std::ranges::all_of(strides, [](std::int64_t s) { return s % 2 == 0; });
}

}  // namespace

ScorePrinter::ScorePrinter(const Contraction& scores, int operand, bool aligned, ParameterList& parameters)
    : EpiloguePrinter(scores, Boxes{.operands = operand < 0 ? std::vector<int>{} : std::vector<int>{operand}}, false, 1,
                      parameters, {"Scores", "ScoreParameters", "Query", true}),
      aligned_(aligned),
      score_(score_of(scores.epilogue)),
      positions_(scores.epilogue),
      visible_(visible_keys(scores.epilogue, score_, positions_)) {
  for (std::size_t i = 0; i < visible_.bounds.size(); ++i)
    parameters.number("int", "bound_" + number(i), visible_.bounds[i].from);
  std::vector<int> all = ends(visible_.all);
  std::ranges::copy(ends(visible_.seen), std::back_inserter(all));
  std::vector<int> used = all;
  for (const int i : needed(all, Level::kElement))
    used.insert(used.end(), step(i).arguments.begin(), step(i).arguments.end());
  for (int i = 0; i < std::ssize(k_.steps); ++i)
    if (step(i).level == Level::kRow && step(i).kind != StepKind::kConstant && std::ranges::count(used, i) > 0)
      row_members_.push_back(i);
}

std::vector<int> ScorePrinter::ends(const Peeled& p) const {
  std::vector<int> steps = {p.base};
  for (const Peeled::Mask& m : p.masks) steps.push_back(m.condition);
  return steps;
}

std::string ScorePrinter::print() {
  out_.open("struct Scores {");
  out_.line("using Params = ScoreParameters;");
  print_row();
  print_map();
  print_factor();
  print_keys();
  out_.close("};");
  return out_.text();
}

// ---- positions ------------------------------------------------------------------------------------------------------

/// How a position is named where positions use it.
std::string ScorePrinter::position(int i) const {
  return step(i).kind == StepKind::kConstant ? "static_cast<float>(" + reference(i) + ")" : "at_" + names_[at(i)];
}

/// Its value as a float: integers below 2^24 are exact, and a processor has more units for floats.
std::string ScorePrinter::positioned(int i) const {
  const Step& s = step(i);
  if (s.kind == StepKind::kIota) {
    const std::string& name = iotas_[at(s.index)];
    const Operand& o = k_.iotas[at(s.index)];
    const std::string first = "p." + name + "_from + " + offset(name, o, "at.col");
    const std::string base = "static_cast<float>(static_cast<int>(" + first + "))";
    if (s.level == Level::kRow) return base;
    const std::int64_t stride = axes_of(o, "").back().stride;
    const std::string further = stride == 1 ? "8 * j + x" : "(8 * j + x) * static_cast<int>(p." + name + "_col)";
    return base + " + static_cast<float>(" + further + ")";
  }
  if (s.kind == StepKind::kCast) return position(s.arguments[0]);
  const auto argument = [&](std::size_t which) { return position(s.arguments[which]); };
  switch (s.op) {
    case Op::add:
      return argument(0) + " + " + argument(1);
    case Op::subtract:
      return argument(0) + " - " + argument(1);
    case Op::multiply:
      return argument(0) + " * " + argument(1) + " + 0.0f";  // no -0
    case Op::negative:
      return "0.0f - " + argument(0);
    case Op::absolute:
      return "fabsf(" + argument(0) + ")";
    case Op::where:
      return reference(s.arguments[0]) + " ? " + argument(1) + " : " + argument(2);
    case Op::maximum:
    case Op::minimum:
      return std::string(name(s.op)) + "(" + argument(0) + ", " + argument(1) + ")";
    default:
      throw std::logic_error("kfusion: attention's positions have no " + std::string(name(s.op)));
  }
}

bool ScorePrinter::is_used_beside_positions(int i) const {
  for (int user = 0; user < std::ssize(k_.steps); ++user) {
    const Step& s = step(user);
    if (std::ranges::count(s.arguments, i) == 0 || positions_.has(user) || positions_.compares(user)) continue;
    if (s.kind == StepKind::kCast && s.dtype == DType::kFloat32) continue;
    return true;
  }
  return false;
}

// ---- values ---------------------------------------------------------------------------------------------------------

/// The tanh of a soft cap; its absolute error is what counts in a score.
std::string ScorePrinter::tanh(const Step& s) const {
  const std::string x = reference(s.arguments[0]);
  return s.dtype == DType::kBFloat16 ? "attention::rough_tanh(" + x + ")" : "attention::level_tanh(" + x + ")";
}

/// The text of an element's step that is no product.
std::string ScorePrinter::element(int i) const {
  const Step& s = step(i);
  const auto is_position = [&](std::size_t which) { return positions_.has(s.arguments[which]); };
  if (positions_.compares(i)) {
    const std::string op = s.op == Op::less         ? " < "
                           : s.op == Op::less_equal ? " <= "
                           : s.op == Op::greater    ? " > "
                                                    : " >= ";
    return position(s.arguments[0]) + op + position(s.arguments[1]);
  }
  if (s.kind == StepKind::kCast && s.dtype == DType::kFloat32 && is_position(0)) return position(s.arguments[0]);
  if (s.kind == StepKind::kLoad && comes_in_pairs(i)) return loads_[at(s.index)] + "[x]";
  if (s.kind == StepKind::kMap && s.op == Op::tanh && s.dtype != DType::kFloat64 && s.level == Level::kElement)
    return tanh(s);
  return value(i, "col", "true");
}

void ScorePrinter::print_value(int i, const std::string& text) {
  if (positions_.has(i)) {
    out_.line("[[maybe_unused]] const float at_" + names_[at(i)] + " = " + text + ";", step(i).label);
    if (is_used_beside_positions(i))
      out_.line("const " + type_of(i) + " " + names_[at(i)] + " = static_cast<" + type_of(i) + ">(at_" + names_[at(i)] +
                ");");
    return;
  }
  out_.line("[[maybe_unused]] const " + type_of(i) + " " + names_[at(i)] + " = " + text + ";", step(i).label);
}

/// A load along the keys of which a lane takes two neighbours at once.
bool ScorePrinter::comes_in_pairs(int i) const {
  const Step& s = step(i);
  return s.kind == StepKind::kLoad && s.level == Level::kElement && !is_product(i) &&
         axes_of(k_.loads[at(s.index)], "").back().stride == 1;
}

// ---- the members ----------------------------------------------------------------------------------------------------

void ScorePrinter::print_row() {
  const auto member = [&](int i) {
    return positions_.has(i) ? "float at_" + names_[at(i)] : type_of(i) + " " + names_[at(i)];
  };
  std::string values;
  out_.open("struct Row {");
  for (const int i : row_members_) {
    out_.line(member(i) + ";", step(i).label);
    values += (values.empty() ? "" : ", ") + std::string(positions_.has(i) ? "at_" : "") + names_[at(i)];
  }
  out_.close("};");
  out_.open("static KF_DEVICE Row row([[maybe_unused]] const Params& p, [[maybe_unused]] const Query& at) {");
  for (const int i : needed(row_members_, Level::kRow))
    print_value(i, positions_.has(i) ? positioned(i) : positions_.compares(i) ? element(i) : value(i, "0", "true"));
  out_.line("return {" + values + "};");
  out_.close();
}

void ScorePrinter::print_map() {
  out_.line("");
  out_.line("template <bool kEdge, int kAll>");
  out_.open(
      "static KF_DEVICE void map([[maybe_unused]] const Params& p, [[maybe_unused]] const Row& row, float (&s)[kAll], "
      "[[maybe_unused]] int h, [[maybe_unused]] int j0, [[maybe_unused]] const Pairs& operand, [[maybe_unused]] const "
      "Query& at) {");
  for (const int i : row_members_) print_value(i, "row." + std::string(positions_.has(i) ? "at_" : "") + names_[at(i)]);
  out_.open("if constexpr (kEdge) {");
  print_loop(visible_.all, true);
  out_.close();
  out_.open("if constexpr (!kEdge) {");
  print_loop(visible_.seen, false);
  out_.close();
  out_.close();
}

void ScorePrinter::print_loop(const Peeled& p, bool edge) {
  const bool is_as_it_is = is_product(p.base) && p.masks.empty();
  if (is_as_it_is) return;
  const std::vector<int> steps = needed(ends(p), Level::kElement);
  out_.line("#pragma unroll");
  out_.open("for (int j = j0; j < j0 + 2; ++j) {");
  for (const int i : steps) {
    if (!comes_in_pairs(i)) continue;
    const Operand& o = k_.loads[at(step(i).index)];
    const std::string& name = loads_[at(step(i).index)];
    if (boxes_.is_operand(step(i).index)) {
      out_.line("float " + name + "[2];");
      out_.line("unpack_pair<" + storage_type(o.dtype) + ">(operand.word[j - j0], " + name + "[0], " + name + "[1]);");
      continue;
    }
    const bool whole = aligned_ && !edge && o.offset % 2 == 0 && is_even(o.kept);
    out_.line(type_of(i) + " " + name + "[2];");
    out_.line("attention::load_two<" + std::string(flag(whole)) + ">(" + name + ", p." + name + " + " +
              offset(name, o, "at.col + 8 * j") + ", " + (edge ? "at.cols - at.col - 8 * j" : "2") + ");");
  }
  open_pair(steps);
  out_.line(std::string("[[maybe_unused]] const int col = ") +
            (edge ? "min(at.col + 8 * j + x, at.cols - 1);" : "at.col + 8 * j + x;"));
  for (const int i : steps) {
    if (is_product(i))
      out_.line("const float " + names_[at(i)] + " = s[4 * j + 2 * h + x];", step(i).label);
    else
      print_value(i, positions_.has(i) ? positioned(i) : element(i));
  }
  std::string result = reference(p.base);
  for (const Peeled::Mask& m : p.masks)
    result = reference(m.condition) +
             (m.seen ? " ? " + result + " : attention::kUnseen" : " ? attention::kUnseen : " + result),
    result = "(" + result + ")";
  out_.line("s[4 * j + 2 * h + x] = " + result + ";");
  close_pair();
  out_.close();
}

void ScorePrinter::print_factor() {
  const auto product = [&](const Peeled& p) {
    std::string text = "1.0f";
    for (std::size_t i = 0; i < p.factors.size(); ++i)
      text += (p.divides[i] ? " / " : " * ") + ("static_cast<float>(" + reference(p.factors[i]) + ")");
    return text;
  };
  out_.line("");
  out_.line("template <bool kEdge>");
  out_.open("static KF_DEVICE float factor([[maybe_unused]] const Params& p) {");
  out_.line("return kEdge ? " + product(visible_.all) + " : " + product(visible_.seen) + ";");
  out_.close();
}

void ScorePrinter::print_keys() {
  out_.line("");
  out_.open(
      "static KF_DEVICE Span keys([[maybe_unused]] const Params& p, [[maybe_unused]] int first, "
      "[[maybe_unused]] int last, int cols) {");
  out_.line("Span s{0, cols, 0, cols};");
  for (std::size_t i = 0; i < visible_.bounds.size(); ++i) {
    const KeyBound& b = visible_.bounds[i];
    const std::string from = "p.bound_" + number(i), by = std::to_string(b.row) + " * ";
    const auto at_row = [&](bool largest) {
      return b.row == 0 ? from : by + ((b.row > 0) == largest ? "last + " : "first + ") + from;
    };
    if (b.upper) {
      out_.line("s.end = min(s.end, " + at_row(true) + " + 1);");
      out_.line("s.whole_end = min(s.whole_end, " + at_row(false) + " + 1);");
    } else {
      out_.line("s.begin = max(s.begin, " + at_row(false) + ");");
      out_.line("s.whole_begin = max(s.whole_begin, " + at_row(true) + ");");
    }
  }
  out_.line("return s;");
  out_.close();
}

}  // namespace kfusion::codegen
