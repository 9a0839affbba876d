#include "codegen/contractions/epilogue_printer.hpp"

#include <algorithm>
#include <cctype>

#include "codegen/expression.hpp"
#include "codegen/skeleton.hpp"

namespace kfusion::codegen {
namespace {

/// What a name of an operand is made of: its label as an identifier, and its number.
std::string name_of(const char* prefix, const std::string& label, std::size_t i) {
  std::string name = prefix;
  for (const char c : label) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name + (label.empty() ? "" : "_") + number(i);
}

std::string accumulator(const Step& s) { return is_float(s.from) ? compute_type(s.from) : "i64"; }

}  // namespace

std::size_t state_words(const Kernel& k) {
  auto words = static_cast<std::size_t>(std::ranges::count(k.steps, StepKind::kReduce, &Step::kind));
  for (std::size_t i = 0; i < k.pairs.size(); ++i) {
    const Pair& p = k.pairs[i];
    words += p.kind == Pair::Kind::kCentred ? 1 : 0;
    for (std::size_t j = 0; j < i; ++j) words += k.pairs[j].first == p.first ? 1 : 0;  // which both have
  }
  return words;
}

int summed_store(const Kernel& k, int sums) {
  const int summed = k.stores[at(sums)].step;
  for (int i = 0; i < std::ssize(k.stores); ++i) {
    const Step& s = k.steps[at(k.stores[at(i)].step)];
    const bool rounds = s.kind == StepKind::kCast && is_half(s.dtype) && s.arguments[0] == summed;
    if (k.stores[at(i)].parts == 0 && (k.stores[at(i)].step == summed || rounds)) return i;
  }
  return -1;
}

TileStrides tile_strides(const Operand& o, bool turned) {
  if (!o.reduced.empty()) return {o.kept[0], o.kept[1], o.reduced[0]};
  return turned ? TileStrides{o.kept[0], o.kept[2], o.kept[1]} : TileStrides{o.kept[0], o.kept[1], o.kept[2]};
}

EpiloguePrinter::EpiloguePrinter(const Contraction& c, const Boxes& boxes, bool turned, int parts,
                                 ParameterList& parameters, EpilogueNames names)
    : c_(c), k_(c.epilogue), boxes_(boxes), turned_(turned), parts_(parts > 1), text_(std::move(names)) {
  name_all();
  declare(parameters, parts);
}

EpiloguePrinter::EpiloguePrinter(OfScores, const Contraction& c, const Boxes& boxes, ParameterList& parameters,
                                 EpilogueNames names)
    : c_(c), k_(c.epilogue), boxes_(boxes), turned_(false), parts_(false), scores_(true), text_(std::move(names)) {
  name_all();
  declare_loads(parameters);
  declare_constants(parameters);
}

void EpiloguePrinter::name_all() {
  for (std::size_t i = 0; i < k_.loads.size(); ++i) loads_.push_back(name_of("in_", k_.loads[i].label, i));
  for (std::size_t i = 0; i < k_.iotas.size(); ++i) iotas_.push_back(name_of("iota_", "", i));
  for (std::size_t i = 0; i < k_.stores.size(); ++i) stores_.push_back(name_of("out_", k_.stores[i].to.label, i));
  for (std::size_t i = 0; i < k_.steps.size(); ++i) {
    const Step& s = k_.steps[i];
    const std::string op = s.kind == StepKind::kConstant ? "scalar" : std::string(name(s.op));
    names_.push_back((s.kind == StepKind::kLoad ? "value" : op) + "_" + number(i));
  }
}

// ---- parameters -----------------------------------------------------------------------------------------------------

void EpiloguePrinter::declare(ParameterList& parameters, int parts) {
  declare_loads(parameters);
  declare_stores(parameters);
  declare_constants(parameters);
  if (c_.reduces == Reduces::kNothing) return;
  parameters.number("i64", "count", c_.reduces == Reduces::kRows ? c_.rows : c_.cols);
  if (parts == 1) return;
  parameters.memory("workspace", Cell::Kind::kWorkspace);
  parameters.memory("standing", Cell::Kind::kStanding);
}

void EpiloguePrinter::declare_loads(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.loads.size(); ++i) {
    const Operand& o = k_.loads[i];
    const auto index = static_cast<int>(i);
    const bool boxed = boxes_.is_operand(index) || std::ranges::count(boxes_.vectors, index) > 0;
    if (boxed || c_.product_of(o) >= 0) continue;
    parameters.load(loads_[i], o, index);
    declare_strides(parameters, loads_[i], o);
  }
  for (std::size_t i = 0; i < k_.iotas.size(); ++i) {
    parameters.number("i64", iotas_[i] + "_from", k_.iotas[i].offset);
    declare_strides(parameters, iotas_[i], k_.iotas[i]);
  }
}

void EpiloguePrinter::declare_stores(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.stores.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (boxes_.is_result(index) || (is_sums(index) && !sums_box(index))) continue;
    parameters.store(stores_[i], k_.stores[i].to, index);
    if (is_sums(index)) continue;
    declare_strides(parameters, stores_[i], k_.stores[i].to);
  }
}

void EpiloguePrinter::declare_constants(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.steps.size(); ++i)
    if (step(static_cast<int>(i)).kind == StepKind::kConstant)
      parameters.constant(names_[i], k_.constants[at(k_.steps[i].index)], k_.steps[i].index);
}

/// Along every axis of batches, rows and columns.
std::vector<EpiloguePrinter::Along> EpiloguePrinter::axes_of(const Operand& o, const std::string& col) const {
  std::vector<Along> axes;
  const std::size_t batches = c_.batch_axes.size();
  for (std::size_t i = 0; i < batches; ++i) {
    const std::string which = batches == 1 && !text_.several_batches ? "" : number(i);
    axes.push_back({"at.batch" + (which.empty() ? "" : "[" + which + "]"), "_batch" + which, o.kept[i]});
  }
  const bool reduces = !o.reduced.empty();
  std::int64_t row = o.kept[batches], column = reduces ? o.reduced[0] : o.kept[batches + 1];
  if (turned_ && !reduces) std::swap(row, column);
  axes.push_back({"at.row", "_row", row}), axes.push_back({col, "_col", column});
  return axes;
}

/// Static are those of 0 and of 1.
void EpiloguePrinter::declare_strides(ParameterList& parameters, const std::string& name, const Operand& o) {
  for (const Along& a : axes_of(o, ""))
    if (a.stride != 0 && a.stride != 1) parameters.number("i64", name + a.suffix, a.stride);
}

// ---- expressions ----------------------------------------------------------------------------------------------------

/// Of an element from an operand's first one: "i64(at.row) * p.in_x_0_row + col"; "0" where there is one element.
std::string EpiloguePrinter::offset(const std::string& name, const Operand& o, const std::string& col) const {
  std::string text;
  for (const Along& a : axes_of(o, col)) {
    if (a.stride == 0) continue;
    text += (text.empty() ? "" : " + ") + ("i64(" + a.index + ")") + (a.stride == 1 ? "" : " * p." + name + a.suffix);
  }
  return text.empty() ? "0" : text;
}

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

// ---- the struct -----------------------------------------------------------------------------------------------------

std::string EpiloguePrinter::print() {
  out_.open("struct " + text_.fused + " {");
  out_.line("using Params = " + text_.parameters + ";");
  out_.line("static constexpr int kProducts = " + number(c_.products.size()) + ", kColumns = " +
            number(boxes_.vectors.size()) + ", kColumnValues = " + number(boxes_.columns.size()) + ";");
  if (c_.reduces == Reduces::kNothing) {
    print_boxes();
    if (!boxes_.columns.empty()) print_column();
    print_map();
  } else {
    out_.line(std::string("static constexpr bool kParts = ") + flag(parts_) + ";");
    print_state();
    print_fold();
    print_join();
    print_end();
  }
  out_.close("};");
  return out_.text();
}

std::optional<std::size_t> EpiloguePrinter::sums_box(int store) const {
  const int summed = summed_store(k_, store);
  for (int i = 0; i < store; ++i)  // a box has one place for its sums, which other axes may be seen in
    if (is_sums(i) && summed_store(k_, i) == summed) return std::nullopt;
  const auto found = std::ranges::find(boxes_.results, summed);
  const bool alike = summed >= 0 && k_.stores[at(summed)].to.dtype == c_.products[0].dtype;
  return found == boxes_.results.end() || !alike ? std::nullopt : std::optional(at(found - boxes_.results.begin()));
}

void EpiloguePrinter::print_boxes() {
  unsigned sums = 0;
  std::string text;
  for (int i = 0; i < std::ssize(k_.stores); ++i)
    if (const auto box = is_sums(i) ? sums_box(i) : std::nullopt) {
      sums |= 1u << *box;
      text += (text.empty() ? "" : " : ") + ("result == " + number(*box)) + " ? p." + stores_[at(i)];
    }
  out_.line("static constexpr int kOperands = " + number(boxes_.operands.size()) +
            ", kResults = " + number(boxes_.results.size()) + ";");
  out_.line("static constexpr u32 kSums = " + std::to_string(sums) + ";");
  if (sums == 0) return;
  out_.line("");
  out_.line("static KF_DEVICE float* sums(const Params& p, int result) { return " + text + " : nullptr; }");
}

void EpiloguePrinter::print_column() {
  out_.line("");
  out_.open("static KF_DEVICE void column(const Params& p, const " + text_.point +
            "& at, float (&of)[kColumnValues]) {");
  print_steps(needed(boxes_.columns, Level::kElement), "at.col", "at.first()");
  for (std::size_t i = 0; i < boxes_.columns.size(); ++i)
    out_.line("of[" + number(i) + "] = " + names_[at(boxes_.columns[i])] + ";");
  out_.close();
}

void EpiloguePrinter::print_map() {
  out_.line("");
  out_.open(
      "static KF_DEVICE void map([[maybe_unused]] const Params& p, const Pair (&v)[kProducts], "
      "[[maybe_unused]] const u32 (&along)[2], [[maybe_unused]] const Pair* columns, "
      "[[maybe_unused]] const u32* operands, [[maybe_unused]] u32* results, [[maybe_unused]] const " +
      text_.point + "& at) {");
  const auto unpacked = [&](int load, const std::string& word) {
    const std::string& name = loads_[at(load)];
    out_.line("float " + name + "[2];");
    out_.line("unpack_pair<" + storage_type(k_.loads[at(load)].dtype) + ">(" + word + ", " + name + "[0], " + name +
              "[1]);");
  };
  for (std::size_t i = 0; i < boxes_.vectors.size(); ++i) unpacked(boxes_.vectors[i], "along[" + number(i) + "]");
  for (std::size_t i = 0; i < boxes_.operands.size(); ++i) unpacked(boxes_.operands[i], "operands[" + number(i) + "]");
  std::vector<int> stored, elements;
  for (int i = 0; i < std::ssize(stores_); ++i) {
    if (is_sums(i)) continue;  // of boxes
    out_.line(compute_type(k_.stores[at(i)].to.dtype) + " " + stores_[at(i)] + "[2];");
    elements.push_back(i), stored.push_back(k_.stores[at(i)].step);
  }
  const std::vector<int> steps = needed(stored, Level::kElement, false);
  open_pair(steps);
  out_.line("[[maybe_unused]] const bool inside = x ? at.second() : at.first();");
  for (const int i : steps) {
    const Step& s = step(i);
    std::string text;
    if (is_of_column(i)) {
      const std::string which = number(std::ranges::find(boxes_.columns, i) - boxes_.columns.begin());
      text = "x ? columns[" + which + "].y : columns[" + which + "].x";
    } else if (is_product(i)) {
      const std::string which = number(at(c_.product_of(k_.loads[at(s.index)])));
      text = "x ? v[" + which + "].y : v[" + which + "].x";
    } else if (s.kind == StepKind::kLoad &&
               (boxes_.is_operand(s.index) || std::ranges::count(boxes_.vectors, s.index) > 0)) {
      text = loads_[at(s.index)] + "[x]";
    } else {
      text = value(i, "at.col + x", "inside");
    }
    out_.line("[[maybe_unused]] const " + type_of(i) + " " + names_[at(i)] + " = " + text + ";", s.label);
  }
  for (const int i : elements) {
    const std::string& name = stores_[at(i)];
    const Store& store = k_.stores[at(i)];
    out_.line(name + "[x] = " + reference(store.step) + ";");
    if (!boxes_.is_result(i))
      out_.line("store_element(p." + name + " + " + offset(name, store.to, "at.col + x") + ", " + name +
                "[x], inside);");
  }
  close_pair();
  for (std::size_t i = 0; i < boxes_.results.size(); ++i) {
    const std::string& name = stores_[at(boxes_.results[i])];
    out_.line("results[" + number(i) + "] = pack_pair<" + storage_type(k_.stores[at(boxes_.results[i])].to.dtype) +
              ">(" + name + "[0], " + name + "[1]);");
  }
  out_.close();
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
    const Meaning meanings[] = {{"A", a}};
    const std::string extreme = a + "(" + (s.op == Op::max ? "lowest<" : "highest<") + a + ">())";
    start.emplace_back(names_[at(i)], info(s.op).needs_elements() ? extreme : with(info(s.op).identity, meanings));
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

std::optional<EpiloguePrinter::Pick> EpiloguePrinter::pick_of(int reduction) const {
  const auto is_map = [&](int i, Op op) { return step(i).kind == StepKind::kMap && step(i).op == op; };
  const int where = step(reduction).arguments[0];
  if (step(reduction).op != Op::sum || !is_map(where, Op::where)) return std::nullopt;
  const int equal = step(where).arguments[0], otherwise = step(where).arguments[2];
  if (!is_map(equal, Op::equal) || step(otherwise).kind != StepKind::kConstant) return std::nullopt;
  const Constant& zero = k_.constants[at(step(otherwise).index)];
  if (zero.parameter >= 0 || zero.value != 0) return std::nullopt;
  const bool first = step(step(equal).arguments[0]).kind == StepKind::kIota;
  const int iota = step(equal).arguments[first ? 0 : 1], place = step(equal).arguments[first ? 1 : 0];
  if (step(iota).kind != StepKind::kIota || step(place).level != Level::kRow || is_float(step(place).dtype))
    return std::nullopt;
  const TileStrides s = tile_strides(k_.iotas[at(step(iota).index)], turned_);
  if (s.batch != 0 || s.row != 0 || s.col != 1) return std::nullopt;
  return Pick{reduction, iota, place, step(where).arguments[1]};
}

/// Most tiles have no column that the row wants.
void EpiloguePrinter::print_pick(const Pick& pick) {
  const std::string place = "place_" + number(at(pick.reduction));
  out_.line("const i64 " + place + " = i64(" + reference(pick.place) + ") - p." + iotas_[at(step(pick.iota).index)] +
            "_from - at.col;");
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
  const std::string member = "part[x]." + names_[at(i)], a = accumulator(s);
  if (const auto pick = pick_of(i)) {
    f.picks.push_back(*pick);
    return;
  }
  f.taken.push_back(s.arguments[0]);
  const Meaning lift[] = {{"x", reference(s.arguments[0])}, {"A", a}, {"T", compute_type(s.from)}};
  const Meaning combine[] = {{"a", member}, {"b", with(info(s.op).lift, lift)}, {"A", a}};
  f.first.push_back(member + " = " + with(info(s.op).combine, combine) + ";");
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
  for (const Pick& p : f.picks) wanted.insert(wanted.end(), {p.place, p.value});
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
    const Meaning combine[] = {{"a", "s." + member}, {"b", "o." + member}, {"A", accumulator(step(i))}};
    out_.line("s." + member + " = " + with(info(step(i).op).combine, combine) + ";");
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
    const Meaning finish[] = {{"a", member}, {"n", "p.count"}, {"A", accumulator(s)}};
    const std::string result = pair ? member + part_of(*pair, i) : with(info(s.op).finish, finish);
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
