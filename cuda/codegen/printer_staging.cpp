// Operands that pass through shared memory: members of Fused that bring them there, and find them.
#include <algorithm>

#include "codegen/capacity.hpp"
#include "codegen/printer.hpp"

namespace kfusion::codegen {

/// What device/spans.cuh asks for.
void Printer::print_spans() {
  const SpanAreas areas = span_areas(k_, a_, traits_.held);
  const std::size_t elements = at(traits_.span_rows) * static_cast<std::size_t>(a_.inner[0]);
  Code gather, scatter, staged;
  const auto add = [&](const std::string& name, const Operand& o, std::int64_t area, Code& move, const char* how) {
    const std::string from = "areas + " + number(static_cast<std::size_t>(area) * elements);
    move.line(std::string("    ") + how + "_span<" + number(elements) + ">(reinterpret_cast<Slot*>(" + from +
              "), line." + name + ", elements);");
    staged.line("    line." + name + " = reinterpret_cast<" + storage_type(o.dtype) + "*>(" + from + ") + element;");
  };
  for (std::size_t i = 0; i < loads_.size(); ++i)
    if (a_.loads[i] == Addressing::kStaged) add(loads_[i], k_.loads[i], areas.loads[i], gather, "gather");
  for (std::size_t i = 0; i < stores_.size(); ++i)
    if (a_.stores[i] == Addressing::kStaged) add(stores_[i], k_.stores[i].to, areas.stores[i], scatter, "scatter");
  out_.line("static constexpr int kUnit = " + std::to_string(span_unit(k_, a_)) +
            ", kAreaBytes = " + number(static_cast<std::size_t>(areas.bytes) * elements) + ";");
  const std::string span = "(const Line& line, char* areas, int elements) const {\n";
  out_.line("KF_DEVICE void gather" + span + gather.text() + "  }");
  out_.line("KF_DEVICE void scatter" + span + scatter.text() + "  }");
  out_.line("KF_DEVICE Line staged(Line line, char* areas, int element) const {\n" + staged.text() +
            "    return line;\n  }");
}

/// What device/packed.cuh asks for.
void Printer::print_packs() {
  Code packs, gather, scatter;
  const auto add = [&](const std::string& name, const Operand& o, Code& move, const char* how) {
    packs.line("    Pack<" + storage_type(o.dtype) + ", kWidth, " + std::to_string(a_.packed) + "> " + name + ";");
    move.line(std::string("    ") + how + "_packs(packs." + name + ", line." + name + ", elements, area);");
  };
  for (std::size_t i = 0; i < loads_.size(); ++i)
    if (a_.loads[i] == Addressing::kStaged) add(loads_[i], k_.loads[i], gather, "gather");
  for (std::size_t i = 0; i < stores_.size(); ++i)
    if (a_.stores[i] == Addressing::kStaged) add(stores_[i], k_.stores[i].to, scatter, "scatter");
  out_.line("");
  out_.line("struct Packs {\n" + packs.text() + "  };");
  out_.line("static constexpr int kSlots = " + std::to_string(packed_slots(k_, a_)) + ";");
  const std::string span = "(const Line& line, Slot* area, int elements, Packs& packs) const {\n";
  out_.line("KF_DEVICE void gather" + span + gather.text() + "  }");
  out_.line("KF_DEVICE void scatter" + span + scatter.text() + "  }");
  out_.line(
      "static KF_DEVICE Line packed(Line line, Packs& packs, int r) {\n    line.packs = &packs, line.number = r;\n    "
      "return line;\n  }");
}

/// Prints held operands that a thread copies for itself: see device/tiles.cuh.
void Printer::print_slots(const std::vector<int>& loads) {
  Code start, take;
  std::size_t before = 0;
  for (const int i : loads) {
    const std::string &name = loads_[at(i)],
                      bytes = number(item_bytes(load(i).dtype) * static_cast<std::size_t>(a_.width)),
                      slot = "stage + " + number(before) + " * slots + slot * " + bytes;
    const std::string offset = a_.loads[at(i)] == Addressing::kDense ? "at.first" : inner_offset(name, load(i), "at");
    start.line("    start_own_copy<" + bytes + ">(" + slot + ", line." + name + " + " + offset + ", valid);");
    take.line("    v." + name + " = *reinterpret_cast<const " + vector_type(i) + "*>(" + slot + ");");
    before += item_bytes(load(i).dtype) * static_cast<std::size_t>(a_.width);
  }
  out_.line("static constexpr int kHeldBytes = " + number(before) + ";");
  out_.line(
      "KF_DEVICE void start(const Line& line, const At& at, char* stage, int slots, int slot, bool valid) const {\n" +
      start.text() + "  }");
  out_.line("KF_DEVICE Held take(const char* stage, int slots, int slot) const {\n    Held v;\n" + take.text() +
            "    return v;\n  }");
}

/// Prints values that a block keeps of its rows: see device/tiles.cuh.
void Printer::print_row_values() {
  Code keep, kept;
  std::size_t before = 0;
  for (const int i : traits_.shared) {
    const std::string type = storage_type(load(i).dtype), name = "line." + loads_[at(i)],
                      place = "areas + " + number(before) + " * room) + row";
    keep.line("    *(reinterpret_cast<" + type + "*>(" + place + ") = *" + name + ";");
    kept.line("    " + name + " = reinterpret_cast<const " + type + "*>(" + place + ";");
    before += item_bytes(load(i).dtype);
  }
  out_.line("static constexpr int kKeptBytes = " + number(before) + ";");
  out_.line("KF_DEVICE void keep(const Line& line, char* areas, int room, int row) const {\n" + keep.text() + "  }");
  out_.line("KF_DEVICE Line kept(Line line, const char* areas, int room, int row) const {\n" + kept.text() +
            "    return line;\n  }");
}

/// What device/planes.cuh asks for.
void Printer::print_planes() {
  const std::vector<int> planes = plane_loads();
  if (planes.empty()) return;
  Code body;
  for (std::size_t n = 0; n < planes.size(); ++n)
    body.line("    entry.word[" + number(n) + "] = __float_as_uint(get(load_vector<1, true, Use::kAgain>(line." +
              loads_[at(planes[n])] + " + element, 1), 0));");
  out_.line("KF_DEVICE Planes::Own entry(const Line& line, Index element) const {\n    Planes::Own entry;\n" +
            body.text() + "    return entry;\n  }");
}

/// Prints held operands that bulk copies can bring: see device/ring.cuh.
void Printer::print_stages(const std::vector<int>& loads) {
  Code take;
  for (std::size_t n = 0; n < loads.size(); ++n)
    take.line("    v." + loads_[at(loads[n])] + " = " + staged(loads[n], n) + ";");
  out_.line("static constexpr int kHeldBytes = " + number(16 * loads.size()) + ";");
  print_start("start", "kHeldBytes", loads);
  out_.line("KF_DEVICE Held take(const char* stage, int vectors, int vector) const {\n    Held v;\n" + take.text() +
            "    return v;\n  }");
}

/// Vector `vector` of the operand that is number `n` of a stage.
std::string Printer::staged(int i, std::size_t n) const {
  return "*reinterpret_cast<const Vector<" + storage_type(load(i).dtype) + ", kWidth>*>(stage + " + number(16 * n) +
         " * vectors + vector * 16)";
}

/// Copies of neighbouring vectors of some operands to a stage.
void Printer::print_start(const std::string& name, const std::string& bytes_of_all, const std::vector<int>& loads) {
  Code start;
  for (std::size_t n = 0; n < loads.size(); ++n)
    start.line("    start_copy(stage + " + number(16 * n) + " * vectors, line." + loads_[at(loads[n])] +
               " + first, elements * " + number(item_bytes(load(loads[n]).dtype)) + ", barrier);");
  out_.line("KF_DEVICE void " + name +
            "(const Line& line, Index first, int elements, char* stage, int vectors, Barrier* barrier) const {");
  out_.line("    expect(barrier, elements * (" + bytes_of_all +
            " / kWidth));\n    if (elements == 0) return;  // a copy of nothing is none\n" + start.text() + "  }");
}

/// Operands that are the same for all rows, which blocks that stay bring to shared memory once.
void Printer::print_shared() {
  out_.line("static constexpr int kSharedBytes = " + number(16 * traits_.shared.size()) + ";");
  if (!traits_.shared.empty()) print_start("start_shared", "kSharedBytes", traits_.shared);
}

}  // namespace kfusion::codegen
