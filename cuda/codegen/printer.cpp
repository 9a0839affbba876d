// The struct as a whole: its names, its expressions, its sweeps and what stands once per row. printer_operands.cpp has
// how its operands are loaded, printer_reductions.cpp how sweeps reduce, printer_kept.cpp what is kept between them.
#include "codegen/printer.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "codegen/expression.hpp"

namespace kfusion::codegen {

void Code::line(const std::string& text, const std::string& comment) {
  if (!text.empty() && text[0] != '#') text_ += std::string(static_cast<std::size_t>(2 * depth_), ' ');
  text_ += text;
  if (!comment.empty()) text_ += "  // " + comment;
  text_ += "\n";
}

Printer::Printer(const Kernel& k, const Arrangement& a, const Traits& traits, ParameterList& parameters)
    : k_(k), a_(a), s_(k.paired), traits_(traits), lanes_(a.framed() ? "kN" : "kWidth") {
  if (traits.keeps_exponentials) kept_ = find_kept();
  loads_ = operand_names("in_", true);
  stores_ = operand_names("out_", false);
  for (std::size_t i = 0; i < k.steps.size(); ++i) {
    const Step& step = k.steps[i];
    const std::string op = step.kind == StepKind::kConstant ? "scalar" : std::string(name(step.op));
    names_.push_back(step.kind == StepKind::kLoad ? loads_[at(step.index)] : op + "_" + number(i));
  }
  declare_parameters(parameters);
}

/// From the names of values, made identifiers and unique.
Printer::Names Printer::operand_names(const char* prefix, bool loads) const {
  Names names;
  std::set<std::string> used;
  const std::size_t count = loads ? k_.loads.size() : k_.stores.size();
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = prefix;
    for (const char c : loads ? k_.loads[i].label : k_.stores[i].to.label) {
      const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
      if (is_word || text.back() != '_') text += is_word ? c : '_';
    }
    if (text != prefix && text.back() == '_') text.pop_back();
    if (text == prefix) text += number(i);
    while (!used.insert(text).second) text.append(1, '_').append(number(i));
    names.push_back(text);
  }
  return names;
}

// ---- parameters -----------------------------------------------------------------------------------------------------

void Printer::declare_parameters(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.loads.size(); ++i) {
    parameters.load(loads_[i], k_.loads[i], static_cast<int>(i));
    declare_strides(parameters, loads_[i], k_.loads[i], a_.loads[i]);
  }
  for (std::size_t i = 0; i < k_.stores.size(); ++i) {
    parameters.store(stores_[i], k_.stores[i].to, static_cast<int>(i));
    declare_strides(parameters, stores_[i], k_.stores[i].to, a_.stores[i]);
  }
  for (std::size_t i = 0; i < k_.steps.size(); ++i) {
    const Step& step = k_.steps[i];
    if (step.kind == StepKind::kConstant) parameters.constant(names_[i], k_.constants[at(step.index)], step.index);
    if (step.kind != StepKind::kIota) continue;
    const Operand& o = k_.iotas[at(step.index)];
    parameters.number("i64", names_[i] + "_from", o.offset);
    declare_strides(parameters, names_[i], o, Reach::kElements);
  }
  parameters.axes("inner", a_.inner, a_.wide);
  if (!a_.outer.empty()) parameters.axes("outer", a_.outer, a_.wide_outer);
}

// ---- expressions ----------------------------------------------------------------------------------------------------

std::string Printer::reference(int i) const {
  if (step(i).kind == StepKind::kConstant) return "p." + names_[at(i)];
  if (is_row(i)) return "values." + names_[at(i)] + lane();
  return names_[at(i)];
}

std::string Printer::iota(const Step& s, const std::string& inner) const {
  const auto index = static_cast<std::size_t>(&s - k_.steps.data());
  const Operand& o = k_.iotas[at(s.index)];
  std::string text = (a_.outer.empty() ? "p." : "line.") + names_[index] + (a_.outer.empty() ? "_from" : "");
  const std::string more = inner_offset(names_[index], o, inner);
  if (more != "0") text += " + " + more;
  return "convert<" + compute_type(s.dtype) + ">(" + text + ")";
}

/// Division of elements by a value of their row: products with its reciprocal do it.
bool Printer::is_shared_quotient(const Step& s) const {
  if (s.op != Op::divide || s.kind != StepKind::kMap || !is_float(s.from) || a_.form == Form::kPointwise) return false;
  const int divisor = s.arguments[1];
  return is_row(divisor) && !is_row(s.arguments[0]) && step(divisor).kind != StepKind::kConstant;
}

bool Printer::divides(int i) const {
  return std::ranges::any_of(k_.steps, [&](const Step& s) { return is_shared_quotient(s) && s.arguments[1] == i; });
}

/// Half types do not show the errors of the quick one.
std::string Printer::divisor_type(int i) const {
  const bool quick = std::ranges::all_of(
      k_.steps, [&](const Step& s) { return !is_shared_quotient(s) || s.arguments[1] != i || is_half(s.dtype); });
  return (quick ? "QuickDivisor<" : "Divisor<") + type_of(i) + ">";
}

std::string Printer::divisor_of(int i) const { return "by_" + names_[at(i)] + lane(); }

/// Of a row's value, and what is derived from it once.
void Printer::assign(int i, const std::string& value) {
  out_.line(reference(i) + " = " + value + ";", step(i).label);
  if (divides(i)) out_.line("values." + divisor_of(i) + " = " + divisor_type(i) + "(" + reference(i) + ");");
}

/// By the hardware's approximations (device/quick.cuh).
bool Printer::is_quick(const Step& s) const {
  return info(s.op).has(kQuickPerRow) ? s.level == Level::kRow : is_half(s.dtype) && info(s.op).has(kQuick);
}

/// Of maps and casts.
std::string Printer::formula(const Step& s) const {
  const auto argument = [&](std::size_t i) { return i < s.arguments.size() ? reference(s.arguments[i]) : ""; };
  if (s.kind == StepKind::kCast) {
    if (is_half(s.dtype)) return "rounded<" + storage_type(s.dtype) + ">(" + argument(0) + ")";
    return "convert<" + compute_type(s.dtype) + ">(" + argument(0) + ")";
  }
  if (is_quick(s)) return "quick_" + std::string(name(s.op)) + "(" + argument(0) + ")";
  if (is_shared_quotient(s)) {
    return "quotient(" + argument(0) + ", values." + divisor_of(s.arguments[1]) + ")";
  }
  const Meaning meanings[] = {{"x", argument(0)}, {"y", argument(1)}, {"z", argument(2)}, {"T", compute_type(s.from)}};
  const std::string text = with(info(s.op).expression, meanings);
  return s.dtype == DType::kBool && s.from == DType::kBool ? "(" + text + ") != 0" : text;
}

// ---- the struct -----------------------------------------------------------------------------------------------------

std::vector<int> Printer::loads_of(int sweep, bool held) const {
  std::vector<int> found;
  for (const int i : element_steps(k_, sweep))
    if (step(i).kind == StepKind::kLoad && traits_.held[at(step(i).index)] == held) found.push_back(step(i).index);
  return found;
}

std::vector<int> Printer::fetched_later() const {
  std::vector<int> found;
  for (int sweep = 1; sweep < s_.sweeps; ++sweep)
    for (const int i : loads_of(sweep, false))
      if (std::ranges::find(found, i) == found.end()) found.push_back(i);
  return found;
}

std::string Printer::print() {
  out_.open("struct Fused {");
  print_types();
  print_line();
  if (a_.packed > 0)
    print_packs();
  else if (a_.spans)
    print_spans();
  std::vector<int> held;
  for (std::size_t i = 0; i < traits_.held.size(); ++i)
    if (traits_.held[i]) held.push_back(static_cast<int>(i));
  print_vectors("Held", held, true);
  print_loading("load(", "Held", held);
  print_prefetch("prefetch", held);
  print_prefetch("prefetch_fetched", fetched_later());
  if (traits_.staging == Traits::Staging::kOwnCopies) print_slots(held);
  if (traits_.shares_row_values) print_row_values();
  if (traits_.staging == Traits::Staging::kBulkCopies) print_stages(held), print_shared();
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
    print_partial(sweep);
    print_fetch(sweep);
    if (columns()) print_crossed(sweep);
  }
  print_begin();
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
    print_sweep(sweep);
    print_finish(sweep);
  }
  print_end();
  out_.close("};");
  return out_.text();
}

void Printer::print_types() {
  const auto index = [](bool wide) { return std::string(wide ? "i64" : "int"); };
  out_.line("using Index = " + index(a_.wide) + ";");
  out_.line("using Row = " + index(a_.wide_outer) + ";");
  out_.line("using At = Place<Index, " + number(a_.inner.size()) + ">;");
  out_.line("static constexpr int kWidth = " + std::to_string(a_.width) + ", kSweeps = " + std::to_string(s_.sweeps) +
            ";");
  const auto flag = [](bool is) { return std::string(is ? "true" : "false"); };
  std::string looking;
  bool fetching = false;
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
    looking += (sweep > 0 ? ", " : "") + flag(looks(sweep));
    fetching = fetching || !loads_of(sweep, false).empty();
  }
  out_.line("static constexpr bool kLooks[] = {" + looking + "};");
  out_.line("static constexpr bool kWhole = " + flag(a_.whole) + ", kFetches = " + flag(fetching) +
            (columns() ? ", kCrosses = " + flag(a_.crossed()) + ";" : ";"));
  if (a_.framed())
    out_.line("static constexpr int kBefore = " + std::to_string(a_.before) +
              ", kBehind = " + std::to_string(a_.behind) + ";");
  out_.line("const Parameters& p;");
  out_.line("");
  const std::string points = a_.spans ? "Axes<Index, 1>{" + number(at(static_cast<int>(a_.inner[0]))) + "}" : "p.inner";
  out_.line("KF_DEVICE i64 elements() const { return " + elements() + "; }");
  out_.line("KF_DEVICE At place(Index first) const { return device::place(" + points + ", first, kWidth); }");
}

/// Values of the elements of a vector, lane by lane.
void Printer::print_elements(int sweep) {
  for (const int i : element_steps(k_, sweep)) {
    const Step& s = step(i);
    if (has_kept(sweep) && kept_.replaces(i)) continue;
    std::string value;
    if (has_kept(sweep) && is_of_kept(i)) {
      value = "get(" + held_name(kept_.load) + ", j) * factor";
    } else if (s.kind == StepKind::kLoad) {
      const std::string lane_of = a_.loads[at(s.index)] == Reach::kSplat ? "0" : "j";
      value = std::string("get(") + (traits_.held[at(s.index)] ? "held." : "in.") + loads_[at(s.index)] + ", " +
              lane_of + ")";
    } else if (s.kind == StepKind::kIota) {
      value = iota(s, "place(at.first + j)");
    } else {
      value = formula(s);
    }
    out_.line("const " + type_of(i) + " " + names_[at(i)] + " = " + value + ";", s.label);
  }
}

void Printer::open_sweep(const std::string& what, int sweep) {
  const std::string n = std::to_string(sweep);
  out_.line("");
  print_template();
  out_.open("KF_DEVICE void " + what + "(Sweep<" + n + ">, const Line& line, const At& at, " +
            (what == "sweep" && keeps(sweep) ? "" : "const ") + of_lanes("Held") + "& held, const " +
            of_lanes("Fetched" + n) + "& in, const Values& values, Partial" + n + "& part" +
            (columns() && what == "sweep" ? ", Crossed" + n + "& crossed" : "") + ") const {");
}

/// The element steps and reductions of a sweep; a look computes more than it needs, and compilers drop it.
void Printer::print_lanes(int sweep, bool look) {
  out_.line("#pragma unroll");
  out_.open("for (int j = 0; j < " + lanes_ + "; ++j) {");
  print_elements(sweep);
  for (std::size_t i = 0; i < k_.stores.size() && !look; ++i)
    if (s_.stored[i] == sweep) out_.line(stores_[i] + "[j] = " + stored(k_.stores[i]) + ";");
  print_reductions(sweep, look);
  out_.close();
}

void Printer::print_sweep(int sweep) {
  if (looks(sweep)) {
    open_sweep("look", sweep);
    print_factor(sweep);
    print_lanes(sweep, true);
    for (const int i : reductions(sweep))
      if (looks_at_pairs(i))
        out_.line("part." + names_[at(i)] + ".look(largest_of(" + held_name(step(i).arguments[0]) + "));");
    const std::string count = columns() ? "1" : a_.whole ? lanes_ : "at.count";
    open_lanes();
    for (const int i : reductions(sweep))
      if (step(i).pair >= 0) out_.line(partial(i) + ".looked(" + count + ");");
    close_lanes();
    out_.close();
  }
  open_sweep("sweep", sweep);
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.stored[i] == sweep) out_.line(compute_type(k_.stores[i].to.dtype) + " " + stores_[i] + "[" + lanes_ + "];");
  if (keeps(sweep)) out_.line(type_of(kept_.exponential) + " kept[" + lanes_ + "] = {};");
  print_factor(sweep);
  print_lanes(sweep, false);
  if (keeps(sweep)) print_keep();
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.stored[i] == sweep) print_store(static_cast<int>(i));
  out_.close();
}

/// What a store packs: packing rounds, so a cast to the type that is stored need not.
std::string Printer::stored(const Store& store) const {
  const Step& s = step(store.step);
  const bool rounds = s.kind == StepKind::kCast && is_half(s.dtype) && s.dtype == store.to.dtype;
  return reference(rounds && s.from == DType::kFloat32 ? s.arguments[0] : store.step);
}

/// Of the array that has the store's name.
void Printer::print_store(int i) {
  const std::string& name = stores_[at(i)];
  const Operand& o = k_.stores[at(i)].to;
  const std::string packed = "pack_vector<" + storage_type(o.dtype) + ">(" + name + ")";
  if (a_.stores[at(i)] == Reach::kCrossed) {
    out_.line("crossed." + name + " = " + packed + ";");
  } else if (a_.stores[at(i)] == Reach::kStaged) {
    out_.line(a_.packed > 0 ? "line.packs->" + name + ".set(line.number, " + packed + ");"
                            : "store_staged(line." + name + " + at.first, " + packed + ", at.count);");
  } else if (a_.stores[at(i)] == Reach::kDense) {
    out_.line("store_vector<kWhole>(at.in(line." + name + "), " + packed + ", at.count);");
  } else if (a_.stores[at(i)] == Reach::kVector) {
    out_.line("store_vector<kWhole>(line." + name + " + " + inner_offset(name, o, "at") + ", " + packed +
              ", at.count);");
  } else {
    out_.line("store_elements(" + packed + ", at, [&](int j) { const At e = place(at.first + j); return line." + name +
              " + " + inner_offset(name, o, "e") + "; });");
  }
}

void Printer::open_lanes() {
  if (!columns()) return;
  out_.line("#pragma unroll");
  out_.open("for (int j = 0; j < kWidth; ++j) {");
}
void Printer::close_lanes() {
  if (columns()) out_.close();
}

/// Maps of row values that sweep `ready` is the first to use.
void Printer::print_row_steps(int ready) {
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    const bool map = s.kind == StepKind::kMap || s.kind == StepKind::kCast;
    if (map && is_row(i) && s_.ready[at(i)] == ready) assign(i, formula(s));
  }
}

/// What is known of a row before its elements: operands that do not vary along it.
void Printer::print_begin() {
  out_.line("");
  out_.open("struct Values {");
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i)
    if (is_row(i) && step(i).kind != StepKind::kConstant) {
      const std::string lanes = columns() ? "[kWidth];" : ";";
      out_.line(type_of(i) + " " + names_[at(i)] + lanes);
      if (divides(i)) out_.line(divisor_type(i) + " by_" + names_[at(i)] + lanes);
    }
  out_.close("};");
  out_.open("KF_DEVICE Values begin(const Line& line, const At& at) const {");
  out_.line("Values values{};");
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (!is_row(i) || s.kind != StepKind::kLoad) continue;
    const bool splat = !columns() || a_.loads[at(s.index)] == Reach::kSplat;
    const std::string from =
        columns() ? loaded(s.index) : "load_vector<1, true, Use::kAgain>(line." + loads_[at(s.index)] + ", 1)";
    out_.line("const auto loaded_" + names_[at(i)] + " = " + from + ";");
    open_lanes();
    assign(i, "get(loaded_" + names_[at(i)] + (splat ? ", 0)" : ", j)"));
    close_lanes();
  }
  open_lanes();
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i)
    if (is_row(i) && step(i).kind == StepKind::kIota)
      assign(i, iota(step(i), columns() ? "place(at.first + j)" : "at"));
  print_row_steps(0);
  close_lanes();
  out_.line("return values;");
  out_.close();
}

/// Results that are one a row.
void Printer::print_end() {
  out_.open("KF_DEVICE void end(const Line& line, const At& at, " + std::string("const Values& values) const {"));
  for (std::size_t i = 0; i < k_.stores.size(); ++i) {
    if (s_.stored[i] >= 0) continue;
    const Store& store = k_.stores[i];
    const std::string type = compute_type(store.to.dtype);
    out_.line(type + " " + stores_[i] + (columns() ? "[kWidth];" : "[1] = {" + reference(store.step) + "};"));
    if (columns()) {
      open_lanes();
      out_.line(stores_[i] + "[j] = " + reference(store.step) + ";");
      close_lanes();
      print_store(static_cast<int>(i));
    } else {
      out_.line("store_vector<true>(line." + stores_[i] + ", pack_vector<" + storage_type(store.to.dtype) + ">(" +
                stores_[i] + "), 1);");
    }
  }
  out_.close();
}

}  // namespace kfusion::codegen
