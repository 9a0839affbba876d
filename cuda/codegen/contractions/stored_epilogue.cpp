// The epilogue of elements that are stored, for device/contract_stored.cuh: a function of two neighbours.
#include <algorithm>

#include "codegen/contractions/epilogue_printer.hpp"

namespace kfusion::codegen {

int summed_store(const Kernel& k, int sums) {
  const int summed = k.stores[at(sums)].step;
  for (int i = 0; i < std::ssize(k.stores); ++i) {
    const Step& s = k.step(k.stores[at(i)].step);
    const bool rounds = s.kind == StepKind::kCast && is_half(s.dtype) && s.arguments[0] == summed;
    if (k.stores[at(i)].parts == 0 && (k.stores[at(i)].step == summed || rounds)) return i;
  }
  return -1;
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

}  // namespace kfusion::codegen
