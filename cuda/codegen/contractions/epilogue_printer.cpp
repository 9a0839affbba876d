#include "codegen/contractions/epilogue_printer.hpp"

#include <algorithm>

#include "codegen/expression.hpp"
#include "codegen/skeleton.hpp"

namespace kfusion::codegen {
namespace {

/// What a name of an operand is made of: its label as an identifier, and its number.
std::string name_of(const char* prefix, const std::string& label, std::size_t i) {
  return identifier(prefix, label) + (label.empty() ? "" : "_") + number(i);
}

}  // namespace

TileStrides tile_strides(const Operand& o, bool turned) {
  if (!o.reduced.empty()) return {o.kept[0], o.kept[1], o.reduced[0]};
  return turned ? TileStrides{o.kept[0], o.kept[2], o.kept[1]} : TileStrides{o.kept[0], o.kept[1], o.kept[2]};
}

EpiloguePrinter::EpiloguePrinter(const Contraction& c, const Boxes& boxes, bool turned, int parts,
                                 ParameterList& parameters, EpilogueNames names)
    : c_(c), k_(c.epilogue), boxes_(boxes), turned_(turned), parts_(parts > 1), text_(std::move(names)) {
  name_all();
  declare_loads(parameters);
  if (!k_.rough) declare_stores(parameters);
  declare_constants(parameters);
  if (!k_.rough && c_.reduces != Reduces::kNothing) declare_parts(parameters, parts);
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

void EpiloguePrinter::declare_parts(ParameterList& parameters, int parts) {
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

/// Offset of an element from an operand's first one: "i64(at.row) * p.in_x_0_row + col"; "0" where there is one
/// element.
std::string EpiloguePrinter::offset(const std::string& name, const Operand& o, const std::string& col) const {
  std::string text;
  for (const Along& a : axes_of(o, col)) {
    if (a.stride == 0) continue;
    text += (text.empty() ? "" : " + ") + ("i64(" + a.index + ")") + (a.stride == 1 ? "" : " * p." + name + a.suffix);
  }
  return text.empty() ? "0" : text;
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

}  // namespace kfusion::codegen
