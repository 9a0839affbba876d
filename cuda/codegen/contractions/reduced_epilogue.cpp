// The epilogue of rows that are reduced, for device/contract_reduced.cuh: the state of a row, and what becomes of it.
#include <algorithm>

#include "codegen/contractions/epilogue_printer.hpp"
#include "codegen/expression.hpp"
#include "codegen/skeleton.hpp"
#include "kfusion/lower/idioms.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {

std::size_t state_words(const Kernel& k) {
  auto words = static_cast<std::size_t>(std::ranges::count(k.steps, StepKind::kReduce, &Step::kind));
  for (std::size_t i = 0; i < k.pairs.size(); ++i) {
    const Pair& p = k.pairs[i];
    words += p.kind == Pair::Kind::kCentred ? 1 : 0;
    for (std::size_t j = 0; j < i; ++j) words += k.pairs[j].first == p.first ? 1 : 0;  // which both have
  }
  return words;
}

const Pair* EpiloguePrinter::pair_of(int i) const {
  const auto found = std::ranges::find_if(k_.pairs, [i](const Pair& p) { return p.first == i || p.second == i; });
  return found == k_.pairs.end() ? nullptr : &*found;
}

std::string EpiloguePrinter::member_type(const Pair& p) const {
  const std::string a = accumulator(step(p.first));
  if (p.kind == Pair::Kind::kCentred) return "Centred<" + a + ">";
  if (p.kind == Pair::Kind::kShifted) return "Shifted<" + a + ">";
  return "Found<" + a + ", " + flag(step(p.first).op == Op::max) + ">";
}

/// A member for each reduction; one for a pair, of the name of its second.
void EpiloguePrinter::print_state() {
  out_.line("");
  out_.open("struct State {");
  std::vector<std::pair<std::string, std::string>> start;
  for (const Pair& p : k_.pairs) out_.line(member_type(p) + " " + names_[at(p.second)] + ";", step(p.second).label);
  for (int i = 0; i < std::ssize(k_.steps); ++i) {
    if (!is_reduction(i) || pair_of(i)) continue;
    const Step& s = step(i);
    const std::string a = accumulator(s);
    out_.line(a + " " + names_[at(i)] + ";", s.label);
    const std::string extreme = a + "(" + (s.op == Op::max ? "lowest<" : "highest<") + a + ">())";
    start.emplace_back(names_[at(i)], info(s.op).needs_elements() ? extreme : identity(s));
  }
  out_.close("};");
  out_.open("static KF_DEVICE State none() {");
  out_.line("State s;");
  for (const auto& [member, identity] : start) out_.line("s." + member + " = " + identity + ";");
  out_.line("return s;");
  out_.close();
}

/// A pass over the elements of a tile's row: `reduced` are the lines that take one in, into part[x].
void EpiloguePrinter::print_pass(const std::vector<int>& elements, const std::vector<std::string>& reduced) {
  out_.line("#pragma unroll");
  out_.open("for (int j = 0; j < kPairs; ++j) {");
  open_pair(elements);
  out_.line("[[maybe_unused]] const int col = at.col + 8 * j + x;");
  out_.line("if (!kWhole && col >= at.cols) continue;");
  for (const int i : elements)
    out_.line("[[maybe_unused]] const " + type_of(i) + " " + names_[at(i)] + " = " +
                  (is_product(i) ? "acc[4 * j + 2 * h + x]" : value(i, "col", "at.row < at.rows")) + ";",
              step(i).label);
  for (const std::string& line : reduced) out_.line(line);
  close_pair();
  out_.close();
}

/// What adds the element of one column to a sum, and nothing else.
const Pick* EpiloguePrinter::pick_of(int reduction) const {
  const auto pick = std::ranges::find(k_.picks, reduction, &Pick::reduction);
  if (pick == k_.picks.end() || number_of(k_, pick->otherwise) != 0) return nullptr;
  const TileStrides s = tile_strides(k_.iotas[at(step(place_of(*pick)).index)], turned_);
  return s.batch == 0 && s.row == 0 && s.col == 1 ? &*pick : nullptr;
}

/// Most tiles have no column that the row wants.
void EpiloguePrinter::print_pick(const Pick& pick) {
  const std::string place = "place_" + number(at(pick.reduction));
  out_.line("const i64 " + place + " = i64(" + reference(position_of(pick)) + ") - p." +
            iotas_[at(step(place_of(pick)).index)] + "_from - at.col;");
  out_.open("if (" + place + " >= 0 && " + place + " < 8 * kPairs) {");
  const std::string member = "part[x]." + names_[at(pick.reduction)];
  print_pass(needed({pick.value}, Level::kElement),
             {"if (8 * j + x == static_cast<int>(" + place + ")) " + member + " = " + reference(pick.value) + ";"});
  out_.close();
}

void EpiloguePrinter::add_pair(Fold& f, const Pair& p) const {
  const std::string &name = names_[at(p.second)], member = "part[x]." + name;
  const int argument = step(p.first).arguments[0];
  const std::string value = reference(argument);
  f.taken.push_back(argument);
  f.first.push_back(member + ".look(" + value + ");");
  const auto both = [&](const std::string& what) { f.between.push_back("part[0]." + what + " part[1]." + what); };
  if (p.kind == Pair::Kind::kFound) {
    const int position = step(step(p.second).arguments[0]).arguments[1];
    f.between.push_back("const bool seeks_" + name + " = " + member_type(p) + "::settle(part[0]." + name +
                        ", part[1]." + name + ", s." + name + ");");
    f.second.push_back({"seeks_" + name,
                        {argument, position},
                        member + ".seek(" + value + ", static_cast<int>(" + reference(position) + "));"});
    return;
  }
  if (p.kind == Pair::Kind::kCentred) {
    f.between.push_back("part[0]." + name + ".looked(elements_of<kWhole, kPairs>(at, 0));");
    f.between.push_back("part[1]." + name + ".looked(elements_of<kWhole, kPairs>(at, 1));");
    both(name + ".settle();");
  } else {
    const std::string largest = name + ".largest";
    f.between.push_back("part[0]." + largest + " = part[1]." + largest + " = maximum(part[0]." + largest +
                        ", part[1]." + largest + ");");
  }
  f.second.push_back({"", {argument}, member + ".add(" + value + ");"});
}

void EpiloguePrinter::add_single(Fold& f, int i) const {
  const Step& s = step(i);
  const std::string member = "part[x]." + names_[at(i)];
  if (const Pick* const pick = pick_of(i)) {
    f.picks.push_back(*pick);
    return;
  }
  f.taken.push_back(s.arguments[0]);
  f.first.push_back(member + " = " + with_element(s, member, reference(s.arguments[0])) + ";");
}

void EpiloguePrinter::print_fold() {
  Fold f;
  for (const Pair& p : k_.pairs) add_pair(f, p);
  for (int i = 0; i < std::ssize(k_.steps); ++i)
    if (is_reduction(i) && !pair_of(i)) add_single(f, i);
  out_.line("");
  out_.line("template <bool kWhole, int kPairs, int kAll>");
  out_.open(
      "static KF_DEVICE void fold(State& s, [[maybe_unused]] const Params& p, const float (&acc)[kAll], int h, const "
      "Point& at) {");
  std::vector<int> wanted = f.taken, always;  // always: second passes that need no condition, as one
  std::vector<std::string> lines;
  for (const Pick& p : f.picks) wanted.insert(wanted.end(), {position_of(p), p.value});
  for (const Fold::Second& second : f.second) {
    wanted.insert(wanted.end(), second.wanted.begin(), second.wanted.end());
    if (!second.condition.empty()) continue;
    always.insert(always.end(), second.wanted.begin(), second.wanted.end()), lines.push_back(second.line);
  }
  print_steps(needed(wanted, Level::kRow), "0", "at.row < at.rows");
  out_.line("State part[2] = {none(), none()};", "two, for half the latency");
  print_pass(needed(f.taken, Level::kElement), f.first);
  for (const std::string& line : f.between) out_.line(line);
  if (!lines.empty()) print_pass(needed(always, Level::kElement), lines);
  for (const Fold::Second& second : f.second) {
    if (second.condition.empty()) continue;
    out_.open("if (" + second.condition + ") {");
    print_pass(needed(second.wanted, Level::kElement), {second.line});
    out_.close();
  }
  for (const Pick& p : f.picks) print_pick(p);
  out_.line("join(part[0], part[1]);");
  out_.line("join(s, part[0]);");
  out_.close();
}

void EpiloguePrinter::print_join() {
  out_.line("");
  out_.open("static KF_DEVICE void join(State& s, const State& o) {");
  for (const Pair& p : k_.pairs) out_.line("s." + names_[at(p.second)] + ".merge(o." + names_[at(p.second)] + ");");
  for (int i = 0; i < std::ssize(k_.steps); ++i) {
    if (!is_reduction(i) || pair_of(i)) continue;
    const std::string& member = names_[at(i)];
    out_.line("s." + member + " = " + combined(step(i), "s." + member, "o." + member) + ";");
  }
  out_.close();
}

/// The member of a pair's state that a reduction is.
std::string EpiloguePrinter::part_of(const Pair& p, int reduction) const {
  const bool first = p.first == reduction;
  if (p.kind == Pair::Kind::kFound) return first ? ".best" : ".at";
  if (p.kind == Pair::Kind::kShifted) return first ? ".largest" : ".total()";
  if (first) return ".mean";
  return step(reduction).op == Op::mean ? ".squares() / " + accumulator(step(reduction)) + "(p.count)" : ".squares()";
}

void EpiloguePrinter::print_end() {
  out_.line("");
  out_.open("static KF_DEVICE void end(const State& s, const Params& p, int batch, int row) {");
  out_.line("[[maybe_unused]] const Point at{batch, row, 0, row + 1, 1};");
  for (int i = 0; i < std::ssize(k_.steps); ++i) {
    if (!is_reduction(i)) continue;
    const Step& s = step(i);
    const Pair* const pair = pair_of(i);
    const std::string member = "s." + names_[at(pair ? pair->second : i)];
    const std::string result = pair ? member + part_of(*pair, i) : finished(s, member, "p.count");
    out_.line("[[maybe_unused]] const " + type_of(i) + " " + names_[at(i)] + " = static_cast<" + type_of(i) + ">(" +
                  result + ");",
              s.label);
  }
  std::vector<int> stored;
  for (const Store& s : k_.stores) stored.push_back(s.step);
  print_steps(needed(stored, Level::kRow), "0", "true");
  for (std::size_t i = 0; i < stores_.size(); ++i)
    out_.line("store_element(p." + stores_[i] + " + " + offset(stores_[i], k_.stores[i].to, "0") + ", " +
              reference(k_.stores[i].step) + ", true);");
  out_.close();
}

}  // namespace kfusion::codegen
