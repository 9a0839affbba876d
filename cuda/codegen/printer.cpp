// The struct as a whole: its expressions and its sweeps. printer_operands.cpp has how its operands are loaded,
// printer_staging.cpp those that pass through shared memory, printer_reductions.cpp how sweeps reduce, printer_rows.cpp
// what stands once per row, printer_kept.cpp what is kept between sweeps.
#include "codegen/printer.hpp"

#include <algorithm>
#include <functional>

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
  const auto operands_of = [](const auto& list, const auto& operand) {
    std::vector<const Operand*> operands;
    for (const auto& item : list) operands.push_back(&operand(item));
    return operands;
  };
  loads_ = operand_names("in_", operands_of(k.loads, std::identity{}));
  tables_ = operand_names("table_", operands_of(k.tables, [](const Table& t) -> const Operand& { return t.from; }));
  stores_ = operand_names("out_", operands_of(k.stores, [](const Store& s) -> const Operand& { return s.to; }));
  for (std::size_t i = 0; i < k.steps.size(); ++i) {
    const Step& step = k.steps[i];
    const std::string op = step.kind == StepKind::kConstant ? "scalar" : std::string(name(step.op));
    names_.push_back(step.kind == StepKind::kLoad ? loads_[at(step.index)] : op + "_" + number(i));
  }
  declare_parameters(parameters);
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

/// Which element of a vector makes place == position true; nothing for other steps.
std::string Printer::which_of_vector(int i) const {
  const Step& equal = step(i);
  if (columns() || a_.inner.size() != 1 || equal.is.place < 0) return "";
  const Step& place = step(equal.arguments[at(equal.is.place)]);
  if (a_.inner_of(k_.iotas[at(place.index)])[0] != 1) return "";
  return "which_is<" + compute_type(equal.from) + ">(" + reference(equal.arguments[at(1 - equal.is.place)]) + ", " +
         iota(place, "place(at.first)") + ")";
}

/// The place of lane j, without a division where the vector lies within the last axis.
std::string Printer::lane_place() const {
  const bool within = a_.traversal == Traversal::kPointwise && a_.inner.size() > 1 && a_.inner.back() % a_.width == 0;
  return within ? "lane_of(at, j)" : "place(at.first + j)";
}

std::string Printer::position_of(const Step& s) const {
  const std::string& name = tables_[at(s.index)];
  return "Positions<" + std::string(flag(!k_.tables[at(s.index)].positions.nonnegative)) + ">{p.positions_of_" + name +
         ", p.step_of_" + name + "}, ";
}

/// An element of a table, from the indices of an element.
std::string Printer::taken(const Step& s, const std::string& inner) const {
  const std::string& name = tables_[at(s.index)];
  const std::string more = inner_offset(name, k_.tables[at(s.index)].from, inner);
  const bool one = s.level == Level::kRow && !columns();
  return "taken(line." + name + (more == "0" ? "" : " + " + more) + ", " + position_of(s) + reference(s.arguments[0]) +
         ", " + (one ? "true" : "j < at.count") + ")";
}

/// Whether all elements of a vector have one index, and are neighbours in the table.
bool Printer::takes_vectors(const Step& s) const {
  if (s.kind != StepKind::kTake || s.level == Level::kRow || a_.tables[at(s.index)] == Addressing::kElements)
    return false;
  const Step& index = step(s.arguments[0]);
  const bool splat = index.kind == StepKind::kLoad && a_.loads[at(index.index)] == Addressing::kSplat;
  return is_row(s.arguments[0]) || splat;
}

std::string Printer::taken_vector(const Step& s) const {
  const std::string& name = tables_[at(s.index)];
  const Step& index = step(s.arguments[0]);
  const std::string from = a_.tables[at(s.index)] == Addressing::kDense
                               ? "at.in(line." + name + ")"
                               : "line." + name + " + " + inner_offset(name, k_.tables[at(s.index)].from, "at");
  const std::string value =
      is_row(s.arguments[0])
          ? reference(s.arguments[0])
          : std::string("get(") + (traits_.held[at(index.index)] ? "held." : "in.") + loads_[at(index.index)] + ", 0)";
  return "taken_vector<" + lanes_ + ", kWhole>(" + from + ", " + position_of(s) + value + ", at.count)";
}

void Printer::print_taken_vectors(int sweep) {
  for (const int i : element_steps(k_, sweep))
    if (takes_vectors(step(i)) && !(has_kept(sweep) && kept_.replaces(i)))
      out_.line("const auto all_" + names_[at(i)] + " = " + taken_vector(step(i)) + ";", step(i).label);
}

std::string Printer::divisor_type(int i) const {
  return (step(i).is.quick_divisor ? "QuickDivisor<" : "Divisor<") + type_of(i) + ">";
}

std::string Printer::divisor_of(int i) const { return "by_" + names_[at(i)] + lane(); }

/// Assigns a row's value, and its divisor, which is computed once.
void Printer::assign(int i, const std::string& value) {
  out_.line(reference(i) + " = " + value + ";", step(i).label);
  if (step(i).is.divisor) out_.line("values." + divisor_of(i) + " = " + divisor_type(i) + "(" + reference(i) + ");");
}

/// Lanes of columns have row values of their own.
bool Printer::shares_words(const Step& s) const {
  const auto is_constant = [this](int i) { return step(i).kind == StepKind::kConstant; };
  return s.is.random_block && (!columns() || (is_constant(s.arguments[1]) && is_constant(s.arguments[2])));
}

std::string Printer::formula(const Step& s) const {
  const auto value = [this](int i) { return reference(i); };
  if (s.is.quick_quotient)
    return "quotient(" + value(s.arguments[0]) + ", QuickDivisor<float>(" + value(s.arguments[1]) + "))";
  if (s.is.row_quotient) return "quotient(" + value(s.arguments[0]) + ", values." + divisor_of(s.arguments[1]) + ")";
  return codegen::formula(s, value);
}

// ---- the struct -----------------------------------------------------------------------------------------------------

std::vector<int> Printer::loads_of(int sweep, bool held) const {
  std::vector<int> found;
  for (const int i : element_steps(k_, sweep)) {
    const bool left_out = has_kept(sweep) && kept_.replaces(i);
    if (step(i).kind == StepKind::kLoad && traits_.held[at(step(i).index)] == held && !left_out)
      found.push_back(step(i).index);
  }
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
  print_planes();
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
  if (traits_.sums) print_put_sums();
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
  bool fetching = false;
  for (int sweep = 0; sweep < s_.sweeps; ++sweep)
    for (const int i : loads_of(sweep, false)) fetching = fetching || a_.loads[at(i)] != Addressing::kPlanes;
  const auto flags = [&](bool (Printer::*is)(int) const) {
    std::string text;
    for (int sweep = 0; sweep < s_.sweeps; ++sweep) text.append(sweep > 0 ? ", " : "").append(flag((this->*is)(sweep)));
    return text;
  };
  out_.line("static constexpr bool kLooks[] = {" + flags(&Printer::looks) + "}, kBatches[] = {" +
            flags(&Printer::batches) + "};");
  out_.line(std::string("static constexpr bool kWhole = ") + flag(a_.whole) + ", kFetches = " + flag(fetching) +
            (columns() ? std::string(", kCrosses = ") + flag(a_.crossed()) : "") + ";");
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
void Printer::print_elements(int sweep, bool look) {
  const std::vector<int> seen = this->seen(sweep);
  const std::string constant = seen.empty() || look ? "const " : "[[maybe_unused]] const ";  // but for what was seen
  for (const int i : element_steps(k_, sweep)) {
    const Step& s = step(i);
    if (has_kept(sweep) && kept_.replaces(i)) continue;
    const bool is_seen = std::ranges::find(seen, i) != seen.end();
    std::string value;
    if (is_seen && !look) {
      value = seen_name(i) + "[j]";
    } else if (has_kept(sweep) && is_of_kept(i)) {
      value = "get(" + held_name(kept_.load) + ", j) * factor";
    } else if (s.kind == StepKind::kLoad) {
      const std::string lane_of = a_.loads[at(s.index)] == Addressing::kSplat ? "0" : "j";
      value = std::string("get(") + (traits_.held[at(s.index)] ? "held." : "in.") + loads_[at(s.index)] + ", " +
              lane_of + ")";
    } else if (s.kind == StepKind::kIota) {
      value = iota(s, lane_place());
    } else if (s.kind == StepKind::kTake) {
      value = takes_vectors(s) ? "get(all_" + names_[at(i)] + ", j)" : taken(s, lane_place());
    } else if (!which_of_vector(i).empty()) {
      value = which_name(i) + " == u32(j)";
    } else if (shares_words(s)) {
      value = "words_" + names_[at(i)] + ".at(" + reference(s.arguments[0]) + ")";
    } else {
      value = formula(s);
    }
    out_.line(constant + type_of(i) + " " + names_[at(i)] + " = " + value + ";", s.label);
    if (is_seen && look) out_.line(seen_name(i) + "[j] = " + names_[at(i)] + ";");
  }
}

void Printer::open_sweep(const std::string& what, int sweep) {
  const std::string n = std::to_string(sweep);
  out_.line("");
  print_template();
  out_.open("KF_DEVICE void " + what + "(Sweep<" + n + ">, const Line& line, const At& at, " +
            ((what == "sweep" && (keeps(sweep) || sums(sweep))) || (what == "look" && batches(sweep)) ? "" : "const ") +
            of_lanes("Held") + "& held, const " + of_lanes("Fetched" + n) + "& in, const Values& values, Partial" + n +
            "& part" + (columns() && what == "sweep" ? ", Crossed" + n + "& crossed" : "") + ") const {");
}

/// Prints that once per vector, so that an element is compared with a number of the text.
void Printer::print_which(int sweep) {
  for (const int i : element_steps(k_, sweep))
    if (const std::string own = which_of_vector(i); !own.empty())
      out_.line("const u32 " + which_name(i) + " = " + own + ";", step(i).label);
}

/// The element steps and reductions of a sweep; a look computes more than it needs, and compilers drop it.
void Printer::print_lanes(int sweep, bool look) {
  print_taken_vectors(sweep);
  for (const int i : element_steps(k_, sweep))
    if (const Step& s = step(i); shares_words(s))
      out_.line("RandomWords words_" + names_[at(i)] + "(" + reference(s.arguments[1]) + ", " +
                reference(s.arguments[2]) + ");");
  print_which(sweep);
  out_.line("#pragma unroll");
  out_.open("for (int j = 0; j < " + lanes_ + "; ++j) {");
  print_elements(sweep, look);
  for (std::size_t i = 0; i < k_.stores.size() && !look; ++i)
    if (s_.stored[i] == sweep) print_stored(i);
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
        out_.line("part." + names_[at(i)] + ".look(largest_of(" + held_name(half_of(step(i).arguments[0])) + "));");
    const std::string count = columns() ? "1" : a_.whole ? lanes_ : "at.count";
    open_lanes();
    for (const int i : reductions(sweep))
      if (step(i).pair >= 0) out_.line(partial(i) + ".looked(" + count + ");");
    close_lanes();
    out_.close();
  }
  open_sweep("sweep", sweep);
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.stored[i] == sweep && k_.stores[i].parts == 0)
      out_.line(compute_type(k_.stores[i].to.dtype) + " " + stores_[i] + "[" + lanes_ + "];");
  if (keeps(sweep)) out_.line(type_of(kept_.of.exp) + " kept[" + lanes_ + "] = {};");
  print_factor(sweep);
  print_lanes(sweep, false);
  print_picks(sweep);
  if (keeps(sweep)) print_keep();
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.stored[i] == sweep && k_.stores[i].parts == 0) print_store(static_cast<int>(i));
  out_.close();
}

bool Printer::sums(int sweep) const {
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (is_summed(i, sweep)) return true;
  return false;
}

/// An element on its way to memory, or into the sum of its column.
void Printer::print_stored(std::size_t i) {
  const Store& store = k_.stores[i];
  if (store.parts == 0) return out_.line(stores_[i] + "[j] = " + stored(store) + ";");
  const std::string type = compute_type(store.to.dtype), own = "held.sums." + stores_[i] + "[j]";
  const std::string sum = multiply_add(own, store.step, type);
  out_.line((a_.whole ? "" : "if (j < at.count) ") + own + " = " +
            (sum.empty() ? own + " + convert<" + type + ">(" + reference(store.step) + ")" : sum) + ";");
}

/// What a store packs: packing rounds, so a cast to the type that is stored need not.
std::string Printer::stored(const Store& store) const {
  const Step& s = step(store.step);
  const bool rounds = s.kind == StepKind::kCast && is_half(s.dtype) && s.dtype == store.to.dtype;
  return reference(rounds && s.from == DType::kFloat32 ? s.arguments[0] : store.step);
}

/// Stores the array that has the store's name.
void Printer::print_store(int i) {
  const std::string& name = stores_[at(i)];
  const Operand& o = k_.stores[at(i)].to;
  const std::string packed = "pack_vector<" + storage_type(o.dtype) + ">(" + name + ")";
  if (a_.stores[at(i)] == Addressing::kCrossed) {
    out_.line("crossed." + name + " = " + packed + ";");
  } else if (a_.stores[at(i)] == Addressing::kStaged) {
    out_.line(a_.packed > 0 ? "line.packs->" + name + ".set(line.number, " + packed + ");"
                            : "store_staged(line." + name + " + at.first, " + packed + ", at.count);");
  } else if (a_.stores[at(i)] == Addressing::kDense) {
    out_.line("store_vector<kWhole>(at.in(line." + name + "), " + packed + ", at.count);");
  } else if (a_.stores[at(i)] == Addressing::kVector) {
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

}  // namespace kfusion::codegen
