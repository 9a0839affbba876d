#include "cpu/codegen/elements/takes.hpp"

#include <string>

namespace kfusion::cpu::ir {
namespace {

std::string longs() { return vector_of("i64"); }
std::string bits_type() { return "i" + std::to_string(text().lanes()); }
std::string of_longs(const char* op, const std::string& a, const std::string& b) {
  return emit(std::string(op) + " " + longs() + " " + a + ", " + b);
}
std::string of_masks(const char* op, const std::string& a, const std::string& b) {
  return emit(std::string(op) + " " + vector_of("i1") + " " + a + ", " + b);
}
std::string chosen(const std::string& mask, const std::string& a, const std::string& b) {
  return emit("select " + vector_of("i1") + " " + mask + ", " + longs() + " " + a + ", " + longs() + " " + b);
}
std::string in_lanes(const Number& n) { return splat_of("i64", n.name()); }
/// An index, or a register of them.
struct Found {
  std::string index, position, is_there;
};

Found found(const Form& form, const Addresses& at, int table, const Value& index) {
  const std::string i = cast(index, index.type, DType::kInt64).name;
  const std::string extent = in_lanes(at.integer(form.positions(table)));
  std::string position = i;
  if (!form.kernel.tables[static_cast<std::size_t>(table)].positions.nonnegative) {
    const std::string is_negative = emit("icmp slt " + longs() + " " + i + ", " + splat("i64", "0"));
    position = chosen(is_negative, of_longs("add", i, extent), i);
  }
  return {i, position, emit("icmp ult " + longs() + " " + position + ", " + extent)};
}

/// The fields of IndexFault: the table, and behind it the index.
void report(const Addresses& at, int table, const std::string& index) {
  const Pointer& fault = at.field(Field::kFault);
  const std::string before =
      emit("cmpxchg ptr " + fault.name + ", i32 -1, i32 " + std::to_string(table) + " monotonic monotonic");
  when({emit("extractvalue { i32, i1 } " + before + ", 1")}, [&] { put_number(Number(index), fault, 1); });
}

std::string bits_of(const std::string& mask) {
  return emit("bitcast " + vector_of("i1") + " " + mask + " to " + bits_type());
}
std::string any_of(const std::string& mask) { return emit("icmp ne " + bits_type() + " " + bits_of(mask) + ", 0"); }

/// The first of the registers' indices that `lost` says.
void report_first(const Addresses& at, int table, const std::vector<Found>& all, const std::vector<std::string>& lost) {
  text().declare("declare i32 @llvm.cttz.i32(i32, i1)");
  std::string index = "0";
  for (std::size_t j = all.size(); j-- > 0;) {
    const std::string bits = emit("zext " + bits_type() + " " + bits_of(lost[j]) + " to i32");
    const std::string first = emit("call i32 @llvm.cttz.i32(i32 " + bits + ", i1 false)");
    const std::string lane = emit("and i32 " + first + ", " + std::to_string(text().lanes() - 1));
    const std::string element = emit("extractelement " + longs() + " " + all[j].index + ", i32 " + lane);
    index = emit("select i1 " + emit("icmp ne i32 " + bits + ", 0") + ", i64 " + element + ", i64 " + index);
  }
  report(at, table, index);
}

/// What lies at so many bytes from `base` each. All lanes are read, without a branch for each.
std::string gathered(const Pointer& base, const std::string& offsets, int item) {
  const std::string lanes = std::to_string(text().lanes()), bits = bits_of_item(item);
  const std::string type = vector_of(bits), pointers = vector_of("ptr"), mask = vector_of("i1");
  const std::string name = "@llvm.masked.gather.v" + lanes + bits + ".v" + lanes + "p0";
  text().declare("declare " + type + " " + name + "(" + pointers + ", " + mask + ", " + type + ")");
  const std::string at = emit("getelementptr i8, ptr " + base.name + ", " + longs() + " " + offsets);
  return emit("call " + type + " " + name + "(" + pointers + " align 1 " + at + ", " + mask + " " +
              splat("i1", "true") + ", " + type + " poison)");
}

/// Registers of elements as they lie in memory, each at its own index.
std::vector<Value> elements_taken(const Form& form, const Addresses& at, const Step& take,
                                  const std::vector<Value>& indices, const Window& window) {
  const Layout& table = form.tables[static_cast<std::size_t>(take.index)];
  const std::string counted = window.count ? mask_of(*window.count) : "";
  std::vector<Found> all;
  std::vector<std::string> lost;
  for (const Value& index : indices) {
    all.push_back(found(form, at, take.index, index));
    lost.push_back(of_masks("xor", all.back().is_there, splat("i1", "true")));
    if (window.count) lost.back() = of_masks("and", lost.back(), counted);
    if (window.count) all.back().is_there = of_masks("and", all.back().is_there, counted);
  }
  std::string any = lost[0];
  for (std::size_t j = 1; j < lost.size(); ++j) any = of_masks("or", any, lost[j]);
  when({any_of(any)}, [&] { report_first(at, take.index, all, lost); });

  const std::string positions_apart = in_lanes(at.integer(form.table_stride(take.index)));
  std::vector<Value> registers;
  for (std::size_t j = 0; j < all.size(); ++j) {
    std::string offsets = of_longs("mul", all[j].position, positions_apart);
    if (table.copied) {
      offsets = of_longs("add", offsets, copied_numbers(at.numbers(table), window, static_cast<int>(j)));
    } else if (table.reach > Reach::kOfRun) {
      const Number stride = at.stride(table),
                   first = (window.first + std::int64_t{form.lanes} * static_cast<int>(j)) * stride;
      offsets = of_longs("add", offsets,
                         of_longs("add", of_longs("mul", numbered("i64"), in_lanes(stride)), in_lanes(first)));
    }
    const std::string raw = gathered(at.row(table), chosen(all[j].is_there, offsets, splat("i64", "0")), table.item);
    const std::string typed = emit("bitcast " + vector_of(bits_of_item(table.item)) + " " + raw + " to " +
                                   vector_of(memory_type(take.dtype)));
    registers.push_back({typed, take.dtype, true});
  }
  return registers;
}

}  // namespace

Number offset_in_table(const Form& form, const Addresses& at, int table, const Value& index) {
  const Lanes row(1);
  const Found f = found(form, at, table, index);
  when({f.is_there}, [] {}, [&] { report(at, table, f.index); });
  return Number(chosen(f.is_there, f.position, "0")) * at.integer(form.table_stride(table));
}

Value number_taken(const Form& form, const Addresses& at, const Step& take, const Number& offset) {
  const Pointer from = at.row(form.tables[static_cast<std::size_t>(take.index)]) + offset;
  const std::string raw = emit(std::string("load ") + memory_type(take.dtype) + ", ptr " + from.name + ", align 1");
  return widen({raw, take.dtype, false}, take.dtype);
}

void Elements::find_offsets(int index, const Value& number) {
  for (std::size_t t = 0; t < offsets_.size(); ++t)
    if (const Step& take = step(static_cast<int>(t)); take.kind == StepKind::kTake && take.arguments[0] == index)
      offsets_[t] = offset_in_table(form_, at_, take.index, number);
}

std::vector<Value> Elements::taken(int s, const Window& window) {
  const Step& take = step(s);
  const int index = take.arguments[0];
  if (!form_.is_vector(index) && !form_.tables[static_cast<std::size_t>(take.index)].copied)
    return load(form_.tables[static_cast<std::size_t>(take.index)], take.dtype, window,
                *offsets_[static_cast<std::size_t>(s)]);
  std::vector<Value> indices;
  for (int j = 0; j < window.registers; ++j) indices.push_back(value(index, j));
  return elements_taken(form_, at_, take, indices, window);
}

}  // namespace kfusion::cpu::ir
