#include "cpu/codegen/instructions/memory.hpp"

namespace kfusion::cpu::ir {
namespace {

/// "llvm.masked.load.v16i32.p0"
std::string masked(const char* what, int item) {
  return std::string("@llvm.masked.") + what + ".v" + std::to_string(text().lanes()) + bits_of_item(item) + ".p0";
}

}  // namespace

std::string numbered(const std::string& scalar) {
  std::string lanes;
  for (int l = 0; l < text().lanes(); ++l) lanes += (l > 0 ? ", " : "") + scalar + " " + std::to_string(l);
  return text().lanes() == 1 ? "0" : "<" + lanes + ">";
}

std::string splat_of(const std::string& scalar, const std::string& value) {
  const std::string type = vector_of(scalar);
  if (text().lanes() == 1) return value;
  const std::string first = emit("insertelement " + type + " poison, " + scalar + " " + value + ", i64 0");
  return emit("shufflevector " + type + " " + first + ", " + type + " poison, " + vector_of("i32") +
              " zeroinitializer");
}

std::string mask_of(const Number& count) {
  const std::string wanted = splat_of("i32", emit("trunc i64 " + count.name() + " to i32"));
  return emit("icmp ult " + vector_of("i32") + " " + numbered("i32") + ", " + wanted);
}

bool can_mask(const TargetFacts& target, int item) { return target.avx512 || (target.avx2 && item >= 4); }

std::string load_lanes(const Pointer& from, int item, const std::string& mask) {
  const std::string type = vector_of(bits_of_item(item)), masks = vector_of("i1"), name = masked("load", item);
  text().declare("declare " + type + " " + name + "(ptr, " + masks + ", " + type + ")");
  return emit("call " + type + " " + name + "(ptr align 1 " + from.name + ", " + masks + " " + mask + ", " + type +
              " zeroinitializer)");
}

void store_lanes(const std::string& lanes, int item, const Pointer& to, const std::string& mask) {
  const std::string type = vector_of(bits_of_item(item)), masks = vector_of("i1"), name = masked("store", item);
  text().declare("declare void " + name + "(" + type + ", ptr, " + masks + ")");
  text().line("call void " + name + "(" + type + " " + lanes + ", ptr align 1 " + to.name + ", " + masks + " " + mask +
              ")");
}

void copy_elements(const Pointer& from, const Number& from_stride, const Pointer& to, const Number& to_stride, int item,
                   const Number& count) {
  const std::string type = bits_of_item(item);
  Carry at = {{"ptr", from.name}, {"ptr", to.name}};
  const auto one = [&] {
    const std::string element = emit("load " + type + ", ptr " + at[0].name + ", align 1");
    text().line("store " + type + " " + element + ", ptr " + at[1].name + ", align 1");
    at[0].name = (Pointer{at[0].name} + from_stride).name, at[1].name = (Pointer{at[1].name} + to_stride).name;
  };
  constexpr std::int64_t kAtOnce = 4;
  const bool whole = count.is_literal() && count.value() % kAtOnce == 0;
  for_each(0, count, whole ? kAtOnce : 1, at, [&](const Number&) {
    for (int k = 0; k < (whole ? kAtOnce : 1); ++k) one();
  });
}

}  // namespace kfusion::cpu::ir
