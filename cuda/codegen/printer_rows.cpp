// What stands once per row: the struct Values, what begin() finds before the sweeps, and what end() stores after them.
#include "codegen/printer.hpp"

namespace kfusion::codegen {

/// Maps of row values, and elements of tables, that sweep `ready` is the first to use.
void Printer::print_row_steps(int ready) {
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (!is_row(i) || s_.ready[at(i)] != ready) continue;
    if (s.kind == StepKind::kMap || s.kind == StepKind::kCast) assign(i, formula(s));
    if (s.kind == StepKind::kTake) assign(i, taken(s, columns() ? "place(at.first + j)" : "at"));
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
      if (step(i).is.divisor) out_.line(divisor_type(i) + " by_" + names_[at(i)] + lanes);
    }
  out_.close("};");
  out_.open("KF_DEVICE Values begin(const Line& line, const At& at) const {");
  out_.line("Values values{};");
  for (int i = 0; i < static_cast<int>(k_.steps.size()); ++i) {
    const Step& s = step(i);
    if (!is_row(i) || s.kind != StepKind::kLoad) continue;
    const bool splat = !columns() || a_.loads[at(s.index)] == Addressing::kSplat;
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
