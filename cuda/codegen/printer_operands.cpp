// How operands are reached: their names, their parameters, their addresses, and the members of Fused that load them.
#include <algorithm>
#include <cctype>
#include <set>

#include "codegen/capacity.hpp"
#include "codegen/printer.hpp"

namespace kfusion::codegen {
namespace {

/// Names of strides begin unlike names of values, which may end like anything.
constexpr const char *kInner = "stride", *kOuter = "row_stride";
std::string stride_name(const std::string& name, const char* prefix, std::size_t axis) {
  return prefix + number(axis) + "_of_" + name;
}

/// The axes of an operand along which its offset is a parameter.
bool is_general(std::int64_t stride) { return stride != 0 && stride != 1; }

}  // namespace

/// Names operands after their values, as unique identifiers.
Printer::Names Printer::operand_names(const char* prefix, const std::vector<const Operand*>& operands) const {
  Names names;
  std::set<std::string> used;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    std::string text = prefix;
    for (const char c : operands[i]->label) {
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

void Printer::declare_parameters(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.loads.size(); ++i) {
    parameters.load(loads_[i], k_.loads[i], static_cast<int>(i));
    declare_strides(parameters, loads_[i], k_.loads[i], a_.loads[i]);
  }
  for (std::size_t i = 0; i < k_.tables.size(); ++i) {
    const Table& t = k_.tables[i];
    parameters.load(tables_[i], t.from, static_cast<int>(k_.loads.size() + i));
    declare_strides(parameters, tables_[i], t.from, Addressing::kElements);
    parameters.number("i64", "positions_of_" + tables_[i], t.positions.extent);
    parameters.number("i64", "step_of_" + tables_[i], t.stride);
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
    declare_strides(parameters, names_[i], o, Addressing::kElements);
  }
  parameters.axes("inner", a_.inner, a_.wide);
  if (!a_.outer.empty()) parameters.axes("outer", a_.outer, a_.wide_outer);
}

void Printer::declare_strides(ParameterList& parameters, const std::string& name, const Operand& o,
                              Addressing addressing) {
  const Extents &inner = a_.inner_of(o), &outer = a_.outer_of(o);
  for (std::size_t d = 0; d < inner.size() && (addressing != Addressing::kDense || traits_.sums); ++d)
    if (is_general(inner[d])) parameters.number(a_.wide ? "i64" : "int", stride_name(name, kInner, d), inner[d]);
  for (std::size_t d = 0; d < outer.size(); ++d)
    if (is_general(outer[d])) parameters.number("i64", stride_name(name, kOuter, d), outer[d]);
}

/// The sum of index x stride: what is 0 is left out, what is 1 is not multiplied.
std::string Printer::offset(const std::string& name, const Extents& strides, const std::string& indices,
                            const char* prefix) const {
  std::string text;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (strides[d] == 0) continue;
    text += (text.empty() ? "" : " + ") + indices + ".at[" + number(d) + "]";
    if (is_general(strides[d])) text += " * p." + stride_name(name, prefix, d);
  }
  return text.empty() ? "0" : text;
}

std::string Printer::inner_offset(const std::string& name, const Operand& o, const std::string& indices) const {
  return offset(name, a_.inner_of(o), indices, kInner);
}

std::string Printer::vector_type(int i) const {
  const std::string lanes = a_.loads[at(i)] == Addressing::kSplat ? "1" : lanes_;
  const std::string type = a_.loads[at(i)] == Addressing::kPlanes ? "float" : storage_type(load(i).dtype);
  return "Vector<" + type + ", " + lanes + ">";
}

/// Address of column `column` of a vector's, from row `corner` on.
std::string Printer::across(const std::string& name, const Operand& o) const {
  return "corner." + name + " + " + inner_offset(name, o, "at") + " + column * p." +
         stride_name(name, kInner, a_.inner.size() - 1);
}

/// What is read again by other rows, lanes or sweeps may stay in L1.
std::string Printer::loaded(int i) const {
  const Operand& o = load(i);
  const auto repeats = [](const Extents& strides) { return std::ranges::count(strides, 0) > 0; };
  const bool neighbours = columns() && o.reduced.back() == 1 && a_.loads[at(i)] != Addressing::kCrossed;
  const bool again = neighbours || repeats(o.kept) || repeats(o.reduced);
  const std::string use = traits_.through_l1 || again ? "Use::kAgain" : "Use::kOnce";
  const std::string base = "line." + loads_[at(i)] + " + ";
  switch (a_.loads[at(i)]) {
    case Addressing::kDense:
      return "load_vector<" + lanes_ + ", kWhole, " + use + ">(at.in(line." + loads_[at(i)] + "), at.count)";
    case Addressing::kVector:
      return "load_vector<kWidth, kWhole, " + use + ">(" + base + inner_offset(loads_[at(i)], o, "at") + ", at.count)";
    case Addressing::kCrossed:
      return "load_vector<kWidth, true, " + use + ">(" + across(loads_[at(i)], o) + ", column < at.count)";
    case Addressing::kShifted:
      return "load_shifted<" + lanes_ + ">(line." + loads_[at(i)] + ", line.frame, at)";
    case Addressing::kPlanes:
      return "line.planes.load<" + number(plane_of(i)) + ", " + lanes_ + ">(line." + loads_[at(i)] +
             ", line.frame, at)";
    case Addressing::kStaged:
      return a_.packed > 0 ? "line.packs->" + loads_[at(i)] + ".row(line.number)"
                           : "load_staged<kWidth>(" + base + "at.first, at.count)";
    case Addressing::kRun:
      return "load_run<" + storage_type(o.dtype) + ", kWidth>(line." + loads_[at(i)] + ")";
    case Addressing::kSplat:
      if (traits_.shares_row_values && std::ranges::count(traits_.shared, i) > 0)
        return "load_kept(" + base + "0, at.count)";
      return "load_vector<1, true, Use::kAgain>(" + base + inner_offset(loads_[at(i)], o, "at") + ", at.count)";
    default:
      return "load_elements<" + storage_type(o.dtype) + ", " + lanes_ +
             ">(at, [&](int j) { const At e = place(at.first + j); return " + base +
             inner_offset(loads_[at(i)], o, "e") + "; })";
  }
}

/// Addresses at one point of the outer axes.
void Printer::print_line() {
  Code members, body;
  const auto add = [&](const std::string& type, const std::string& member, const std::string& from,
                       const std::string& operand, const Operand& o) {
    members.line("    " + type + " " + member + ";");
    const std::string more = offset(operand, a_.outer_of(o), "row", kOuter);
    body.line("    line." + member + " = p." + from + (more == "0" ? "" : " + (" + more + ")") + ";");
  };
  for (std::size_t i = 0; i < loads_.size(); ++i)
    add("const " + storage_type(k_.loads[i].dtype) + "*", loads_[i], loads_[i], loads_[i], k_.loads[i]);
  for (std::size_t i = 0; i < tables_.size(); ++i)
    add("const " + storage_type(k_.tables[i].from.dtype) + "*", tables_[i], tables_[i], tables_[i], k_.tables[i].from);
  for (std::size_t i = 0; i < stores_.size(); ++i)
    add(storage_type(k_.stores[i].to.dtype) + "*", stores_[i], stores_[i], stores_[i], k_.stores[i].to);
  for (std::size_t i = 0; i < k_.steps.size() && !a_.outer.empty(); ++i)
    if (step(static_cast<int>(i)).kind == StepKind::kIota)
      add("i64", names_[i], names_[i] + "_from", names_[i], k_.iotas[at(k_.steps[i].index)]);
  if (a_.framed()) print_frame(members, body);
  if (const std::vector<int> planes = plane_loads(); !planes.empty()) {
    out_.line("");
    out_.line("using Planes = device::Planes<" + number(planes.size()) + ", kWidth, " +
              number(at(traits_.plane_entries)) + ", " + flag(traits_.planes_twice) + ">;");
    members.line("    Planes planes;");
  }
  if (a_.packed > 0) {
    out_.line("");
    out_.line("struct Packs;");
    members.line("    Packs* packs;\n    int number;");
  }
  out_.line("");
  out_.line("struct Line {\n" + members.text() + "  };");
  out_.open("KF_DEVICE Line line(Row number) const {");
  if (!a_.outer.empty()) out_.line("[[maybe_unused]] const auto row = device::place(p.outer, number, 1);");
  out_.line("Line line;\n" + body.text() + "    return line;");
  out_.close();
  print_edges();
}

/// Loads that lie in planes: number n of them is value n of an entry.
std::vector<int> Printer::plane_loads() const {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(loads_.size()); ++i)
    if (a_.loads[at(i)] == Addressing::kPlanes) found.push_back(i);
  return found;
}
std::size_t Printer::plane_of(int load) const {
  const std::vector<int> planes = plane_loads();
  return static_cast<std::size_t>(std::ranges::find(planes, load) - planes.begin());
}

/// Which elements of a row lie in vectors, and which besides.
void Printer::print_edges() {
  const std::string line = "([[maybe_unused]] const Line& line";
  if (!a_.framed()) {
    out_.line("static constexpr int kEdges = 0;");
    out_.line("KF_DEVICE At place" + line + ", Index first) const { return place(first); }");
    out_.line("KF_DEVICE i64 elements" + line + ") const { return elements(); }");
    out_.line("KF_DEVICE i64 most_elements() const { return elements(); }");
    return;
  }
  out_.line("static constexpr int kEdges = edges_of(kWidth, kBefore, kBehind);");
  out_.line("KF_DEVICE At place" + line + ", Index first) const { return framed_place(line.frame, first, kWidth); }");
  out_.line("KF_DEVICE At edge" + line +
            ", int i) const { return edge_place(line.frame, static_cast<Index>(p.inner.size), i); }");
  out_.line("KF_DEVICE i64 elements" + line + ") const { return line.frame.body; }");
  out_.line("KF_DEVICE i64 most_elements() const { return most_of_body(p.inner.size, kWidth, kBehind); }");
}

/// How a row lies in its frame.
void Printer::print_frame(Code& members, Code& body) const {
  const std::string frame = a_.frame_store >= 0 ? stores_[at(a_.frame_store)] : loads_[at(a_.frame_load)];
  members.line("    Frame<Index> frame;");
  body.line("    line.frame = frame_of<kWidth, kBefore, kBehind>(line." + frame +
            ", static_cast<Index>(p.inner.size));");
}

void Printer::print_vectors(const std::string& type, const std::vector<int>& loads, bool forget) {
  out_.line("");
  print_template();
  out_.open("struct " + type + (a_.framed() ? "Of {" : " {"));
  std::string forgets;
  for (const int i : loads) {
    out_.line(vector_type(i) + " " + loads_[at(i)] + ";");
    forgets += " device::forget(" + loads_[at(i)] + ");";
  }
  for (int sweep = 0; sweep < s_.sweeps && forget; ++sweep)
    for (const int i : seen(sweep)) out_.line(type_of(i) + " seen_" + names_[at(i)] + "[" + lanes_ + "];");
  const bool kept = forget && kept_.load >= 0;
  if (kept) out_.line(type_of(kept_.of.exp) + " shift;", "of the exponentials kept instead");
  if (forget && traits_.sums) print_sums();
  if (forget) out_.line("KF_DEVICE void forget() {" + forgets + " }");
  if (forget)
    out_.line(std::string("KF_DEVICE void take_note_of([[maybe_unused]] const " + type + (a_.framed() ? "Of" : "") +
                          "& first) {") +
              (kept ? " shift = first.shift; }" : "}"));
  out_.close("};");
  if (a_.framed()) out_.line("using " + type + " = " + type + "Of<>;");
  if (forget) out_.line(std::string("using Edge = ") + (a_.framed() ? "HeldOf<1>;" : "Held;"));
}

/// Prints the sums of columns, a member of what a lane holds for a vector.
void Printer::print_sums() {
  out_.open("struct alignas(8) Sums {");
  Code add;
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    if (k_.stores[i].parts == 0) continue;
    out_.line(compute_type(k_.stores[i].to.dtype) + " " + stores_[i] + "[kWidth];");
    add.line("        for (int j = 0; j < kWidth; ++j) " + stores_[i] + "[j] += o." + stores_[i] + "[j];");
  }
  out_.line("KF_DEVICE void add(const Sums& o) {\n" + add.text() + "      }");
  out_.close("} sums;");
}

/// Puts them where those of a part lie.
void Printer::print_put_sums() {
  out_.open("KF_DEVICE void put_sums(const Line& line, const At& at, const Held& held, i64 part) const {");
  Code one_by_one;
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    if (k_.stores[i].parts == 0) continue;
    const std::string part = "line." + stores_[i] + " + part * elements() + ", sums = "held.sums." + stores_[i];
    if (a_.whole && a_.stores[i] == Addressing::kDense)
      out_.line("store_run(" + part + "at.first, " + sums + ");");
    else
      one_by_one.line("      *(" + part + inner_offset(stores_[i], k_.stores[i].to, "e") + ") = " + sums + "[j];");
  }
  if (!one_by_one.text().empty()) {
    out_.open("for (int j = 0; j < at.count; ++j) {");
    out_.line("const At e = place(at.first + j);\n" + one_by_one.text());
    out_.close();
  }
  out_.close();
}

void Printer::print_loading(const std::string& head, const std::string& type, const std::vector<int>& loads) {
  print_template();
  out_.open("KF_DEVICE " + of_lanes(type) + " " + head + "const Line& line, const At& at" +
            (columns() ? ", const Line& corner, int column" : "") + ") const {");
  out_.line(of_lanes(type) + " v{};");
  for (const int i : loads) out_.line("v." + loads_[at(i)] + " = " + loaded(i) + ";");
  out_.line("return v;");
  out_.close();
  Names crossed;
  for (const int i : loads)
    if (a_.loads[at(i)] == Addressing::kCrossed) crossed.push_back(loads_[at(i)]);
  if (columns()) print_uncross(type, crossed);
}

/// Turns the crossed operands of as many rows as a vector has elements.
void Printer::print_uncross(const std::string& type, const Names& crossed) {
  out_.line("template <int kN>");
  out_.open("static KF_DEVICE void uncross(" + type + " (&rows)[kN]) {");
  for (const std::string& name : crossed) out_.line("transpose(rows, &" + type + "::" + name + ");");
  out_.close();
}

/// What a sweep leaves to be stored across: struct CrossedN, and store() of one column of it.
void Printer::print_crossed(int sweep) {
  const std::string n = std::to_string(sweep), type = "Crossed" + n;
  Names names;
  Code stores;
  out_.line("");
  out_.open("struct " + type + " {");
  for (std::size_t i = 0; i < k_.stores.size(); ++i) {
    if (s_.stored[i] != sweep || a_.stores[i] != Addressing::kCrossed) continue;
    const Operand& o = k_.stores[i].to;
    out_.line("Vector<" + storage_type(o.dtype) + ", kWidth> " + stores_[i] + ";");
    stores.line("    store_vector<true>(" + across(stores_[i], o) + ", crossed." + stores_[i] +
                ", column < at.count ? kWidth : 0);");
    names.push_back(stores_[i]);
  }
  out_.close("};");
  out_.line("static KF_DEVICE " + type + " crossed(Sweep<" + n + ">) { return {}; }");
  print_uncross(type, names);
  out_.line("KF_DEVICE void store(const Line& corner, const At& at, int column, const " + type +
            "& crossed) const {\n" + stores.text() + "  }");
}

/// Prints the prefetch of operands whose rows are whole 16-byte vectors.
void Printer::print_prefetch(const std::string& name, const std::vector<int>& loads) {
  out_.open("KF_DEVICE void " + name + "(const Line& line, Index first, int elements) const {");
  for (const int i : loads) {
    const std::size_t item = item_bytes(load(i).dtype);
    if (a_.loads[at(i)] == Addressing::kDense && a_.whole && item * static_cast<std::size_t>(a_.width) == 16)
      out_.line("prefetch_to_l2(line." + loads_[at(i)] + " + first, elements * " + number(item) + ");");
  }
  out_.close();
}

void Printer::print_fetch(int sweep) {
  const std::string type = "Fetched" + std::to_string(sweep);
  print_vectors(type, loads_of(sweep, false), false);
  print_loading("fetch(Sweep<" + std::to_string(sweep) + ">, ", type, loads_of(sweep, false));
  if (traits_.shared.empty() || traits_.shares_row_values) return;
  out_.open("KF_DEVICE " + type + " fetch_shared(Sweep<" + std::to_string(sweep) +
            ">, const Line& line, const At& at, const char* stage, int vectors, int vector) const {");
  out_.line(type + " v{};");
  for (const int i : loads_of(sweep, false)) {
    const auto own = std::ranges::find(traits_.shared, i);
    const auto n = static_cast<std::size_t>(own - traits_.shared.begin());
    out_.line("v." + loads_[at(i)] + " = " + (own == traits_.shared.end() ? loaded(i) : staged(i, n)) + ";");
  }
  out_.line("return v;");
  out_.close();
}

}  // namespace kfusion::codegen
