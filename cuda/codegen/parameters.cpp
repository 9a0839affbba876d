#include "codegen/parameters.hpp"

#include <bit>
#include <cstring>

#include "kfusion/graph/constant.hpp"

namespace kfusion::codegen {
namespace {

std::int64_t low_half(std::uint32_t bits) { return static_cast<std::int64_t>(bits); }

/// The bits of a constant in the first bytes of a cell.
std::int64_t constant_bits(const Constant& c, const double* parameters) {
  if (c.dtype == DType::kInt32) return low_half(static_cast<std::uint32_t>(c.integer));
  if (c.dtype == DType::kInt64)
    return c.parameter >= 0 ? static_cast<std::int64_t>(parameters[c.parameter]) : c.integer;
  const double value = c.parameter >= 0 ? rounded(parameters[c.parameter], precision(c.dtype, c.wide)) : c.value;
  if (c.dtype == DType::kBool) return value != 0;
  if (c.dtype == DType::kFloat64) return std::bit_cast<std::int64_t>(value);
  return low_half(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

/// n / extent for n < 2^31 is (high(n * magic) + n) >> shift (device/vector.cuh).
std::pair<std::uint32_t, std::uint32_t> magic_and_shift(std::uint32_t extent) {
  const auto shift = static_cast<std::uint32_t>(std::bit_width(extent - 1));
  const std::uint64_t power = std::uint64_t{1} << shift;
  return {static_cast<std::uint32_t>(((power - extent) << 32) / extent + 1), shift};
}

std::int64_t packed(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(high) << 32 | low);
}

template <class T>
std::int64_t address(T* base, std::int64_t bytes) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base)) + bytes;
}

}  // namespace

std::string storage_type(DType t) {
  constexpr const char* kNames[] = {"half_t", "bfloat16_t", "float", "double", "bool_t", "i32", "i64"};
  static_assert(std::size(kNames) == kDTypes);
  return kNames[static_cast<int>(t)];
}

std::string compute_type(DType t) {
  if (is_half(t)) return "float";
  return t == DType::kBool ? "u8" : storage_type(t);
}

void ParameterList::declare(const std::string& type, const std::string& name, const std::string& comment) {
  members_ += "  " + type + " " + name + ";" + (comment.empty() ? "" : "  // " + comment) + "\n";
}

void ParameterList::pointer(const std::string& name, const Operand& o, Cell::Kind kind, int index,
                            std::int64_t further) {
  const std::string type = (kind == Cell::Kind::kLoad ? "const " : "") + storage_type(o.dtype);
  declare(type + "*", name);
  pointers_.push_back({type, name, kind == Cell::Kind::kStore, index});
  cells_.push_back({kind, (o.offset + further) * static_cast<std::int64_t>(item_bytes(o.dtype)), index});
}

void ParameterList::memory(const std::string& name, Cell::Kind kind) {
  declare("char*", name);
  cells_.push_back({kind, 0, 0});
}

void ParameterList::number(const std::string& type, const std::string& name, std::int64_t value) {
  declare("alignas(8) " + type, name);
  cell(value);
}

void ParameterList::constant(const std::string& name, const Constant& c, int index) {
  declare("alignas(8) " + compute_type(c.dtype), name);
  cells_.push_back({Cell::Kind::kConstant, 0, index});
}

void ParameterList::axes(const std::string& name, const Extents& extents, bool wide) {
  declare("Axes<" + std::string(wide ? "i64" : "int") + ", " + std::to_string(extents.size()) + ">", name);
  cell(product(extents));
  cell(0);
  for (const std::int64_t extent : extents) {
    const auto narrow = static_cast<std::uint32_t>(extent);
    const auto [magic, shift] = wide || narrow == 0 ? std::pair{0u, 0u} : magic_and_shift(narrow);
    cell(wide ? extent : packed(narrow, magic));
    cell(wide ? 0 : packed(shift, 0));
  }
}

void ParameterList::numbers(const std::string& type, const std::string& name, const std::vector<std::int64_t>& values) {
  declare(type, name);
  for (const std::int64_t value : values) cell(value);
}

void write_cells(const std::vector<Cell>& cells, const std::vector<Constant>& constants, const std::byte* const* loads,
                 std::byte* const* stores, const double* parameters, const Memory& memory, std::byte* to) {
  const auto value_of = [&](const Cell& c) -> std::int64_t {
    const auto i = static_cast<std::size_t>(c.index);
    switch (c.kind) {
      case Cell::Kind::kLoad:
        return address(loads[i], c.value);
      case Cell::Kind::kStore:
        return address(stores[i], c.value);
      case Cell::Kind::kConstant:
        return constant_bits(constants[i], parameters);
      case Cell::Kind::kWorkspace:
        return address(memory.workspace, 0);
      case Cell::Kind::kStanding:
        return address(memory.standing, 0);
      default:
        return c.value;
    }
  };
  for (const Cell& c : cells) {
    const std::int64_t value = value_of(c);
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  }
}

void CudaKernel::write_parameters(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                                  const Memory& memory, std::byte* to) const {
  write_cells(cells_, constants_, loads, stores, parameters, memory, to);
}

}  // namespace kfusion::codegen
