#include "codegen/printer.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "codegen/expression.hpp"

namespace kfusion::codegen {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }
std::string number(std::size_t i) { return std::to_string(i); }

/// Names of strides begin unlike names of values, which may end like anything.
constexpr const char *kInner = "stride", *kOuter = "row_stride";
std::string stride_name(const std::string& name, const char* prefix, std::size_t axis) {
  return prefix + number(axis) + "_of_" + name;
}

/// The axes of an operand along which its offset is a parameter.
bool is_general(std::int64_t stride) { return stride != 0 && stride != 1; }

}  // namespace

void Code::line(const std::string& text, const std::string& comment) {
  if (!text.empty() && text[0] != '#') text_ += std::string(static_cast<std::size_t>(2 * depth_), ' ');
  text_ += text;
  if (!comment.empty()) text_ += "  // " + comment;
  text_ += "\n";
}

Printer::Printer(const Kernel& k, const Arrangement& a, const Choice& c, ParameterList& parameters)
    : k_(k),
      a_(a),
      s_(c.schedule),
      held_(c.held),
      staged_(c.skeleton == Skeleton::kRingRows),
      through_l1_(c.skeleton == Skeleton::kPointwise || c.skeleton == Skeleton::kShortRows) {
  const Skeleton in_registers[] = {Skeleton::kShortRows, Skeleton::kTeamRows, Skeleton::kRingRows};
  if (std::ranges::find(in_registers, c.skeleton) != std::end(in_registers)) kept_ = find_kept();
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

void Printer::declare_strides(ParameterList& parameters, const std::string& name, const Operand& o, Reach reach) {
  const Extents &inner = a_.inner_of(o), &outer = a_.outer_of(o);
  for (std::size_t d = 0; d < inner.size() && reach != Reach::kDense; ++d)
    if (is_general(inner[d])) parameters.number(a_.wide ? "i64" : "int", stride_name(name, kInner, d), inner[d]);
  for (std::size_t d = 0; d < outer.size(); ++d)
    if (is_general(outer[d])) parameters.number("i64", stride_name(name, kOuter, d), outer[d]);
}

/// Where the array of a load begins and ends of which whole vectors are read.
void Printer::declare_bounds(ParameterList& parameters, int i) {
  const Extents& strides = a_.outer_of(load(i));
  std::int64_t begin = 0, end = product(a_.inner);
  for (std::size_t d = 0; d < strides.size(); ++d) (strides[d] < 0 ? begin : end) += strides[d] * (a_.outer[d] - 1);
  parameters.load(loads_[at(i)] + "_begin", load(i), i, begin);
  parameters.load(loads_[at(i)] + "_end", load(i), i, end);
}

void Printer::declare_parameters(ParameterList& parameters) {
  for (std::size_t i = 0; i < k_.loads.size(); ++i) {
    parameters.load(loads_[i], k_.loads[i], static_cast<int>(i));
    declare_strides(parameters, loads_[i], k_.loads[i], a_.loads[i]);
    if (is_surrounded(static_cast<int>(i))) declare_bounds(parameters, static_cast<int>(i));
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
  const std::string lanes = a_.loads[at(i)] == Reach::kSplat ? "1" : "kWidth";
  return "Vector<" + storage_type(load(i).dtype) + ", " + lanes + ">";
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
  const bool neighbours = columns() && o.reduced.back() == 1 && a_.loads[at(i)] != Reach::kCrossed;
  const bool again = neighbours || repeats(o.kept) || repeats(o.reduced);
  const std::string use = through_l1_ || again ? "Use::kAgain" : "Use::kOnce";
  const std::string base = "line." + loads_[at(i)] + " + ";
  if (a_.framed() && a_.loads[at(i)] == Reach::kDense)
    return "load_frame<kWidth, " + use + (held_[at(i)] ? ", kSurrounded>(" : ", false>(") + base + "at.first, at)";
  switch (a_.loads[at(i)]) {
    case Reach::kDense:
      return "load_vector<kWidth, kWhole, " + use + ">(" + base + "at.first, at.count)";
    case Reach::kVector:
      return "load_vector<kWidth, kWhole, " + use + ">(" + base + inner_offset(loads_[at(i)], o, "at") + ", at.count)";
    case Reach::kCrossed:
      return "load_vector<kWidth, true, " + use + ">(" + across(loads_[at(i)], o) + ", column < at.count)";
    case Reach::kShifted:
      return "load_shifted<kWidth>(line." + loads_[at(i)] + ", at)";
    case Reach::kStaged:
      return "load_staged(" + base + "at.first, at.count)";
    case Reach::kSplat:
      return "load_vector<1, true, Use::kAgain>(" + base + inner_offset(loads_[at(i)], o, "at") + ", at.count)";
    default:
      return "load_elements<" + storage_type(o.dtype) +
             ", kWidth>(at, [&](int j) { const At e = place(at.first + j); return " + base +
             inner_offset(loads_[at(i)], o, "e") + "; })";
  }
}

std::string Printer::reference(int i) const {
  if (step(i).kind == StepKind::kConstant) return "p." + names_[at(i)];
  if (s_.per_row[at(i)]) return "values." + names_[at(i)] + lane();
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

/// Division of elements by a value of their row: multiplications by its reciprocal do it.
bool Printer::is_shared_quotient(const Step& s) const {
  if (s.op != Op::divide || s.kind != StepKind::kMap || !is_float(s.from) || a_.form == Form::kPointwise) return false;
  const int divisor = s.arguments[1];
  return s_.per_row[at(divisor)] && !s_.per_row[at(s.arguments[0])] && step(divisor).kind != StepKind::kConstant;
}

bool Printer::divides(int i) const {
  return std::ranges::any_of(k_.steps, [&](const Step& s) { return is_shared_quotient(s) && s.arguments[1] == i; });
}

std::string Printer::divisor_of(int i) const { return "by_" + names_[at(i)] + lane(); }

/// Of a row's value, and what is derived from it once.
void Printer::assign(int i, const std::string& value) {
  out_.line(reference(i) + " = " + value + ";", step(i).label);
  if (divides(i)) out_.line("values." + divisor_of(i) + " = Divisor<" + type_of(i) + ">(" + reference(i) + ");");
}

/// Of maps and casts.
std::string Printer::formula(const Step& s) const {
  const auto argument = [&](std::size_t i) { return i < s.arguments.size() ? reference(s.arguments[i]) : ""; };
  if (s.kind == StepKind::kCast) {
    if (is_half(s.dtype)) return "rounded<" + storage_type(s.dtype) + ">(" + argument(0) + ")";
    return "convert<" + compute_type(s.dtype) + ">(" + argument(0) + ")";
  }
  if (s.op == Op::exp && is_half(s.dtype)) return "exp_of_half(" + argument(0) + ")";
  if (is_shared_quotient(s)) {
    return "quotient(" + argument(0) + ", values." + divisor_of(s.arguments[1]) + ")";
  }
  const Meaning meanings[] = {{"x", argument(0)}, {"y", argument(1)}, {"z", argument(2)}, {"T", compute_type(s.from)}};
  const std::string text = with(info(s.op).expression, meanings);
  return s.dtype == DType::kBool && s.from == DType::kBool ? "(" + text + ") != 0" : text;
}

/// A of ops.def.
std::string Printer::accumulator(const Step& s) const {
  switch (info(s.op).signature) {
    case Signature::A_B:
      return "u8";
    case Signature::C_C:
      return is_float(s.from) ? compute_type(s.from) : "i64";
    default:
      return compute_type(s.from);
  }
}

// ---- the struct -----------------------------------------------------------------------------------------------------

std::vector<int> Printer::reductions(int sweep) const {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const int pair = s_.pair[at(i)];
    const bool second = pair >= 0 && k_.pairs[at(pair)].second == i;
    if (step(i).kind == StepKind::kReduce && s_.time[at(i)] == sweep && !second) found.push_back(i);
  }
  return found;
}

std::vector<int> Printer::loads_of(int sweep, bool held) const {
  std::vector<int> found;
  for (const int i : steps_of(k_, s_, sweep))
    if (step(i).kind == StepKind::kLoad && held_[at(step(i).index)] == held) found.push_back(step(i).index);
  return found;
}

std::string Printer::print() {
  out_.open("struct Fused {");
  print_types();
  print_line();
  if (a_.spans) print_spans();
  std::vector<int> held;
  for (std::size_t i = 0; i < held_.size(); ++i)
    if (held_[i]) held.push_back(static_cast<int>(i));
  print_vectors("Held", held, true);
  out_.line("template <bool kSurrounded = false>");
  print_loading("Held load(", "Held", held);
  print_prefetch(held);
  if (staged_) print_stages(held);
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
  unsigned looking = 0;
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) looking |= unsigned{looks(sweep)} << sweep;
  out_.line("static constexpr u32 kLooks = " + std::to_string(looking) + ";");
  out_.line("static constexpr bool kWhole = " + std::string(a_.whole ? "true" : "false") + ";");
  out_.line("const Parameters& p;");
  out_.line("");
  out_.line("KF_DEVICE i64 elements() const { return p.inner.size; }");
  out_.line("KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }");
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
  for (std::size_t i = 0; i < stores_.size(); ++i)
    add(storage_type(k_.stores[i].to.dtype) + "*", stores_[i], stores_[i], stores_[i], k_.stores[i].to);
  for (std::size_t i = 0; i < k_.steps.size() && !a_.outer.empty(); ++i)
    if (step(static_cast<int>(i)).kind == StepKind::kIota)
      add("i64", names_[i], names_[i] + "_from", names_[i], k_.iotas[at(k_.steps[i].index)]);
  if (a_.framed()) print_frame(members, body);
  out_.line("");
  out_.line("struct Line {\n" + members.text() + "  };");
  out_.open("KF_DEVICE Line line(Row number) const {");
  if (!a_.outer.empty()) out_.line("[[maybe_unused]] const auto row = device::place(p.outer, number, 1);");
  out_.line("Line line;\n" + body.text() + "    return line;");
  out_.close();
  const bool framed = a_.framed();
  out_.line("KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return " +
            std::string(framed ? "framed_place(p.inner, first - line.shift, kWidth)" : "place(first)") + "; }");
  out_.line("KF_DEVICE bool is_surrounded([[maybe_unused]] const Line& line) const { return " +
            std::string(framed ? "line.surrounded" : "true") + "; }");
  out_.line("KF_DEVICE i64 most_elements() const { return p.inner.size" + std::string(framed ? " + kWidth - 1" : "") +
            "; }");
  out_.line("KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return p.inner.size" +
            std::string(framed ? " + line.shift" : "") + "; }");
}

/// What device/spans.cuh asks for: staged operands lie one behind the other in shared memory.
void Printer::print_spans() {
  Code stage, write, staged;
  std::size_t bytes = 0;
  std::string copied;
  const auto area = [&](const Operand& o) {
    const std::string text = "reinterpret_cast<" + storage_type(o.dtype) + "*>(areas + " + number(bytes) + " * room)";
    bytes += item_bytes(o.dtype);
    return text;
  };
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    if (a_.loads[i] != Reach::kStaged) continue;
    const std::string from = area(k_.loads[i]);
    stage.line("    stage_span(" + from + ", line." + loads_[i] + ", elements, barrier);");
    const std::string item = number(item_bytes(k_.loads[i].dtype));
    copied += " + elements * " + item + " / 16 * 16";
    staged.line("    line." + loads_[i] + " = " + from + " + element;");
  }
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    if (a_.stores[i] != Reach::kStaged) continue;
    const std::string from = area(k_.stores[i].to);
    write.line("    write_span(line." + stores_[i] + ", " + from + ", elements);");
    staged.line("    line." + stores_[i] + " = " + from + " + element;");
  }
  const std::string span = "(const Line& line, char* areas, int room, int elements";
  out_.line("static KF_DEVICE u32 staged_bytes(int elements) { return 0" + copied + "; }");
  out_.line("KF_DEVICE void stage" + span + ", Barrier* barrier) const {\n" + stage.text() + "  }");
  out_.line("KF_DEVICE void write" + span + ") const {\n" + write.text() + "  }");
  out_.line("KF_DEVICE Line staged(Line line, char* areas, int room, int element) const {\n" + staged.text() +
            "    return line;\n  }");
}

/// How a row lies in its frame, and whether what surrounds it can be read.
void Printer::print_frame(Code& members, Code& body) const {
  const std::string frame = a_.frame_store >= 0 ? stores_[at(a_.frame_store)] : loads_[at(a_.frame_load)];
  members.line("    int shift;\n    bool surrounded;");
  body.line("    line.shift = frame_shift<kWidth>(line." + frame + ");");
  std::string all = "true";
  for (int i = 0; i < static_cast<int>(loads_.size()); ++i) {
    const std::string& name = loads_[at(i)];
    if (is_surrounded(i))
      all += " && device::is_surrounded(p." + name + "_begin, p." + name + "_end, line." + name +
             ", p.inner.size, kWidth)";
  }
  body.line("    line.surrounded = " + all + ";");
}

void Printer::print_vectors(const char* type, const std::vector<int>& loads, bool forget) {
  out_.line("");
  out_.open(std::string("struct ") + type + " {");
  std::string forgets;
  for (const int i : loads) {
    out_.line(vector_type(i) + " " + loads_[at(i)] + ";");
    forgets += " device::forget(" + loads_[at(i)] + ");";
  }
  if (forget && kept_.load >= 0) out_.line(type_of(kept_.exponential) + " shift;", "of the exponentials kept instead");
  if (forget) out_.line("KF_DEVICE void forget() {" + forgets + " }");
  out_.close("};");
}

void Printer::print_loading(const std::string& head, const char* type, const std::vector<int>& loads) {
  out_.open("KF_DEVICE " + head + "const Line& line, const At& at" +
            (columns() ? ", const Line& corner, int column" : "") + ") const {");
  out_.line(std::string(type) + " v{};");
  for (const int i : loads) out_.line("v." + loads_[at(i)] + " = " + loaded(i) + ";");
  out_.line("return v;");
  out_.close();
  Names crossed;
  for (const int i : loads)
    if (a_.loads[at(i)] == Reach::kCrossed) crossed.push_back(loads_[at(i)]);
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
    if (s_.store_time[i] != sweep || a_.stores[i] != Reach::kCrossed) continue;
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

/// Of held operands whose rows are whole 16-byte vectors.
void Printer::print_prefetch(const std::vector<int>& loads) {
  out_.open("KF_DEVICE void prefetch(const Line& line, Index first, " + std::string("int elements) const {"));
  for (const int i : loads) {
    const std::size_t item = item_bytes(load(i).dtype);
    if (a_.loads[at(i)] == Reach::kDense && (a_.whole || a_.framed()) &&
        item * static_cast<std::size_t>(a_.width) == 16)
      out_.line("prefetch_to_l2(line." + loads_[at(i)] + " + first, elements * " + number(item) + ");");
  }
  out_.close();
}

/// Of held operands that bulk copies can bring: see device/ring.cuh.
void Printer::print_stages(const std::vector<int>& loads) {
  Code copies, start, take;
  std::string bytes = a_.framed() ? "" : "elements * (kHeldBytes / kWidth)";
  std::size_t before = 0;
  for (const int i : loads) {
    const std::string &name = loads_[at(i)], offset = number(before) + " * vectors",
                      item = number(item_bytes(load(i).dtype));
    if (a_.framed()) {
      const std::string copy = "copy_of_" + name;
      copies.line("    const FrameCopy<kWidth, " + storage_type(load(i).dtype) + "> " + copy + "(line." + name +
                  " + first, elements, p." + name + "_begin, p." + name + "_end);");
      bytes += (bytes.empty() ? "" : " + ") + copy + ".bytes()";
      start.line("    " + copy + ".start(stage + " + offset + ", barrier);");
    } else {
      start.line("    start_copy(stage + " + offset + ", line." + name + " + first, elements * " + item +
                 ", barrier);");
    }
    take.line("    v." + name + " = *reinterpret_cast<const " + vector_type(i) + "*>(stage + " + offset +
              " + vector * 16);");
    before += 16;
  }
  out_.line("static constexpr int kHeldBytes = " + number(before) + ";");
  out_.line(
      "KF_DEVICE void start(const Line& line, Index first, int elements, char* stage, int vectors, Barrier* barrier) "
      "const {");
  out_.line(copies.text() + "    expect(barrier, " + bytes + ");\n" + start.text() + "  }");
  out_.line("KF_DEVICE Held take(const char* stage, int vectors, int vector) const {\n    Held v;\n" + take.text() +
            "    return v;\n  }");
}

void Printer::print_fetch(int sweep) {
  const std::string type = "Fetched" + std::to_string(sweep);
  print_vectors(type.c_str(), loads_of(sweep, false), false);
  print_loading(type + " fetch(Sweep<" + std::to_string(sweep) + ">, ", type.c_str(), loads_of(sweep, false));
}

/// The pair that a reduction belongs to, if it is taken together with the other one.
std::string Printer::pair_of(int i) const {
  if (s_.pair[at(i)] < 0) return "";
  const Pair& pair = k_.pairs[at(s_.pair[at(i)])];
  if (pair.kind == Pair::Kind::kCentred) return "Centred<" + accumulator(step(i)) + ">";
  return "Shifted<" + accumulator(step(i)) + ", " + (is_half(step(pair.second).from) ? "true>" : "false>");
}

/// exp(x - first), where the later sweeps know x by nothing else.
Kept Printer::find_kept() const {
  for (const Pair& pair : k_.pairs) {
    if (pair.kind != Pair::Kind::kShifted || s_.pair[at(pair.second)] < 0) continue;
    const auto argument = [&](int i) { return step(i).arguments.empty() ? i : step(i).arguments[0]; };
    const int e = argument(pair.second), difference = argument(e);
    const Kept kept{e, difference, argument(difference), pair.first, s_.time[at(pair.second)]};
    if (can_keep(kept)) return kept;
  }
  return {};
}

bool Printer::can_keep(const Kept& kept) const {
  const Step &e = step(kept.exponential), &d = step(kept.difference), &x = step(kept.load);
  if (e.op != Op::exp || d.op != Op::subtract || x.kind != StepKind::kLoad || !held_[at(x.index)]) return false;
  const Reach reach = a_.loads[at(x.index)];
  if ((reach != Reach::kDense && reach != Reach::kVector) || e.dtype != load(x.index).dtype) return false;
  for (int sweep = kept.sweep + 1; sweep < s_.sweeps; ++sweep)
    for (const int i : steps_of(k_, s_, sweep)) {
      const auto uses = [&](int argument) { return std::ranges::count(step(i).arguments, argument) > 0; };
      if ((uses(kept.load) && i != kept.difference) || (uses(kept.difference) && i != kept.exponential)) return false;
    }
  return std::ranges::none_of(k_.stores,
                              [&](const Store& s) { return s.step == kept.load || s.step == kept.difference; });
}

bool Printer::looks(int sweep) const {
  return std::ranges::any_of(reductions(sweep), [&](int i) { return s_.pair[at(i)] >= 0; });
}

void Printer::print_partial(int sweep) {
  const std::vector<int> reduced = reductions(sweep);
  const std::string type = "Partial" + std::to_string(sweep), lanes = columns() ? "[kWidth]" : "";
  out_.line("");
  if (reduced.empty()) {
    out_.line("using " + type + " = Nothing;");
    out_.line("static KF_DEVICE Nothing partial(Sweep<" + std::to_string(sweep) + ">) { return {}; }");
    return;
  }
  Code start, merge, settle;
  const bool ordered = std::ranges::any_of(reduced, [&](int i) { return pair_of(i).starts_with("Centred"); });
  out_.open("struct " + type + " {");
  out_.line("static constexpr bool kNothing = false, kSymmetric = " + std::string(ordered ? "false;" : "true;"));
  for (const int i : reduced) {
    const Step& s = step(i);
    const std::string name = names_[at(i)], a = accumulator(s), own = name + lane(), other = "b." + own;
    if (const std::string pair = pair_of(i); !pair.empty()) {
      out_.line(pair + " " + name + lanes + ";");
      merge.line("      " + own + ".merge(" + other + ");");
      settle.line("      " + own + ".settle();");
      continue;
    }
    const OpInfo& row = info(s.op);
    const std::string_view combine = reduction_text(row).combine;
    const Meaning extremes[] = {{"a", "lowest<" + a + ">()"}, {"b", "highest<" + a + ">()"}, {"A", a}};
    const Meaning parts[] = {{"a", own}, {"b", other}, {"A", a}};
    out_.line((a == "u8" ? "alignas(4) u8 " : a + " ") + name + lanes + ";");  // merged in words
    start.line(
        "      v." + own + " = " +
        (row.needs_elements ? "unchosen<" + a + ">(" + with(combine, extremes) + ")" : with(row.identity, extremes)) +
        ";");
    merge.line("      " + own + " = " + with(combine, parts) + ";");
  }
  const std::string loop = columns() ? "#pragma unroll\n      for (int j = 0; j < kWidth; ++j) {\n" : "";
  const std::string end = columns() ? "      }\n" : "";
  out_.line("KF_DEVICE void merge(const " + type + "& b) {\n" + loop + merge.text() + end + "    }");
  if (!settle.text().empty()) out_.line("KF_DEVICE void settle() {\n" + loop + settle.text() + end + "    }");
  out_.close("};");
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
      const int pair = s_.pair[at(i)];
      const std::size_t items = pair < 0 ? 1 : k_.pairs[at(pair)].kind == Pair::Kind::kCentred ? 3 : 2;
      align = std::max(align, item);
      const std::size_t begin = std::max(item, std::size_t{4});
      bytes = (bytes + begin - 1) / begin * begin + item * items * (columns() ? static_cast<std::size_t>(a_.width) : 1);
    }
    largest = std::max(largest, (bytes + align - 1) / align * align);
  }
  return largest;
}

/// Values of the elements of a vector, lane by lane.
void Printer::print_elements(int sweep) {
  const bool kept = has_kept(sweep);
  for (const int i : steps_of(k_, s_, sweep)) {
    const Step& s = step(i);
    if (kept && (i == kept_.load || i == kept_.difference)) continue;
    std::string value;
    if (kept && i == kept_.exponential) {
      value = "get(" + kept_name() + ", j) * factor";
    } else if (s.kind == StepKind::kLoad) {
      const std::string lane_of = a_.loads[at(s.index)] == Reach::kSplat ? "0" : "j";
      value = std::string("get(") + (held_[at(s.index)] ? "held." : "in.") + loads_[at(s.index)] + ", " + lane_of + ")";
    } else if (s.kind == StepKind::kIota) {
      value = iota(s, "place(at.first + j)");
    } else {
      value = formula(s);
    }
    out_.line("const " + type_of(i) + " " + names_[at(i)] + " = " + value + ";", s.label);
  }
}

/// `look`: only the first pass of pairs.
void Printer::print_reductions(int sweep, bool look) {
  const std::string guard = a_.whole || columns() ? ""
                            : a_.framed()         ? "if (j >= at.skip && j < at.count) "
                                                  : "if (j < at.count) ";
  for (const int i : reductions(sweep)) {
    const Step& s = step(i);
    const std::string value = reference(s.arguments[0]), own = "part." + names_[at(i)] + lane(), a = accumulator(s);
    if (s_.pair[at(i)] >= 0) {
      const std::string kept = !look && keeps(sweep) && i == kept_.first ? "kept[j] = " : "";
      out_.line(guard + kept + own + (look ? ".look(" : ".add(") + value + ");", s.label);
    } else if (!look) {
      const ReductionText text = reduction_text(info(s.op));
      const Meaning lifted[] = {{"x", value}, {"A", a}, {"T", compute_type(s.from)}};
      const Meaning meanings[] = {{"a", own}, {"b", with(text.lift, lifted)}, {"A", a}};
      out_.line(guard + own + " = " + with(text.combine, meanings) + ";", s.label);
    }
  }
}

void Printer::open_sweep(const std::string& what, int sweep) {
  const std::string n = std::to_string(sweep);
  out_.line("");
  out_.open("KF_DEVICE void " + what + "(Sweep<" + n + ">, const Line& line, const At& at, " +
            (what == "sweep" && keeps(sweep) ? "" : "const ") + "Held& held, " + "const Fetched" + n +
            "& in, const Values& values, Partial" + n + "& part" +
            (columns() && what == "sweep" ? ", Crossed" + n + "& crossed" : "") + ") const {");
}

/// The element steps and reductions of a sweep; a look computes more than it needs, and compilers drop it.
void Printer::print_lanes(int sweep, bool look) {
  out_.line("#pragma unroll");
  out_.open("for (int j = 0; j < kWidth; ++j) {");
  print_elements(sweep);
  for (std::size_t i = 0; i < k_.stores.size() && !look; ++i)
    if (s_.store_time[i] == sweep) out_.line(stores_[i] + "[j] = " + stored(k_.stores[i]) + ";");
  print_reductions(sweep, look);
  out_.close();
}

void Printer::print_sweep(int sweep) {
  if (looks(sweep)) {
    open_sweep("look", sweep);
    print_lanes(sweep, true);
    const std::string count = columns() ? "1" : "kWhole ? kWidth : at.count - at.skip";
    open_lanes();
    for (const int i : reductions(sweep))
      if (s_.pair[at(i)] >= 0) out_.line("part." + names_[at(i)] + lane() + ".looked(" + count + ");");
    close_lanes();
    out_.close();
  }
  open_sweep("sweep", sweep);
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.store_time[i] == sweep) out_.line(compute_type(k_.stores[i].to.dtype) + " " + stores_[i] + "[kWidth];");
  if (keeps(sweep)) out_.line(type_of(kept_.exponential) + " kept[kWidth] = {};");
  if (has_kept(sweep))
    out_.line("const " + type_of(kept_.exponential) + " factor = exp(held.shift - " + reference(kept_.first) + ");");
  print_lanes(sweep, false);
  if (keeps(sweep)) {
    const DType stored = load(step(kept_.load).index).dtype;
    out_.line(kept_name() + " = pack_vector<" + storage_type(stored) + ">(kept);");
    out_.line("held.shift = part." + names_[at(kept_.first)] + ".shift();");
  }
  for (std::size_t i = 0; i < k_.stores.size(); ++i)
    if (s_.store_time[i] == sweep) print_store(static_cast<int>(i));
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
  if (a_.stores[at(i)] == Reach::kDense && a_.framed()) {
    out_.line("store_frame(line." + name + " + at.first, " + packed + ", at);");
  } else if (a_.stores[at(i)] == Reach::kCrossed) {
    out_.line("crossed." + name + " = " + packed + ";");
  } else if (a_.stores[at(i)] == Reach::kStaged) {
    out_.line("store_staged(line." + name + " + at.first, " + packed + ", at.count);");
  } else if (a_.stores[at(i)] == Reach::kDense) {
    out_.line("store_vector<kWhole>(line." + name + " + at.first, " + packed + ", at.count);");
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

/// Maps of row values that are known at `time`.
void Printer::print_row_steps(int time) {
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    const bool map = s.kind == StepKind::kMap || s.kind == StepKind::kCast;
    if (map && s_.per_row[at(i)] && s_.time[at(i)] == time) assign(i, formula(s));
  }
}

/// What is known of a row before its elements: operands that do not vary along it.
void Printer::print_begin() {
  out_.line("");
  out_.open("struct Values {");
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i)
    if (s_.per_row[at(i)] && step(i).kind != StepKind::kConstant) {
      const std::string lanes = columns() ? "[kWidth];" : ";";
      out_.line(type_of(i) + " " + names_[at(i)] + lanes);
      if (divides(i)) out_.line("Divisor<" + type_of(i) + "> by_" + names_[at(i)] + lanes);
    }
  out_.close("};");
  out_.open("KF_DEVICE Values begin(const Line& line, const At& at) const {");
  out_.line("Values values{};");
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (!s_.per_row[at(i)] || s.kind != StepKind::kLoad) continue;
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
    if (s_.per_row[at(i)] && step(i).kind == StepKind::kIota)
      assign(i, iota(step(i), columns() ? "place(at.first + j)" : "at"));
  print_row_steps(-1);
  close_lanes();
  out_.line("return values;");
  out_.close();
}

void Printer::print_finish(int sweep) {
  const std::string n = std::to_string(sweep);
  const std::string elements = "static_cast<i64>(p." + std::string(columns() ? "outer" : "inner") + ".size)";
  out_.open("KF_DEVICE void finish(Sweep<" + n + ">, Values& values, const Partial" + n + "& part) const {");
  open_lanes();
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (s.kind != StepKind::kReduce || s_.time[at(i)] != sweep) continue;
    std::string value = "part." + names_[at(i)] + lane();
    const bool together = s_.pair[at(i)] >= 0;
    if (together) {
      const Pair& pair = k_.pairs[at(s_.pair[at(i)])];
      const bool centred = pair.kind == Pair::Kind::kCentred, first = pair.first == i;
      value = "part." + names_[at(pair.first)] + lane() +
              (first ? (centred ? ".mean" : ".largest") : (centred ? ".squares()" : ".total()"));
      if (first) {  // it is what finish would give
        assign(i, value);
        continue;
      }
    }
    const Meaning meanings[] = {{"a", value}, {"n", elements}, {"A", accumulator(s)}};
    const std::string finished = with(reduction_text(info(s.op)).finish, meanings);
    const bool same = accumulator(s) == type_of(i);
    assign(i, same ? finished : "convert<" + type_of(i) + ">(" + finished + ")");
  }
  print_row_steps(sweep);
  close_lanes();
  out_.close();
}

/// Results that are one a row.
void Printer::print_end() {
  out_.open("KF_DEVICE void end(const Line& line, const At& at, " + std::string("const Values& values) const {"));
  for (std::size_t i = 0; i < k_.stores.size(); ++i) {
    if (s_.store_time[i] >= 0) continue;
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
