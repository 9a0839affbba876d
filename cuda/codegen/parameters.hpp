// The one parameter of a kernel: its text as a struct, and what its bytes are, declared together.
#pragma once
#include <string>
#include <vector>

#include "codegen/generate.hpp"

namespace kfusion::codegen {

/// The type that elements of `t` have in device code: in memory, and in expressions.
std::string storage_type(DType t);
std::string compute_type(DType t);

/// The bytes of a kernel's parameter, or of its last part, as CudaKernel::write_parameters has them.
void write_cells(const std::vector<Cell>& cells, const std::vector<Constant>& constants, const std::byte* const* loads,
                 std::byte* const* stores, const double* parameters, const Memory& memory, std::byte* to);

/// Every member takes whole cells of eight bytes.
class ParameterList {
 public:
  /// The address of an operand's first element, or of one `further` on.
  void load(const std::string& name, const Operand& o, int index, std::int64_t further = 0) {
    pointer(name, o, Cell::Kind::kLoad, index, further);
  }
  void store(const std::string& name, const Operand& o, int index) { pointer(name, o, Cell::Kind::kStore, index, 0); }
  void memory(const std::string& name, Cell::Kind kind);
  void number(const std::string& type, const std::string& name, std::int64_t value);
  void constant(const std::string& name, const Constant& c, int index);
  /// Extents with what divides by them; `wide`: 64-bit indices.
  void axes(const std::string& name, const Extents& extents, bool wide);
  /// A struct of `values`, all i64.
  void numbers(const std::string& type, const std::string& name, const std::vector<std::int64_t>& values);

  /// A member that is the address of load or store `index`.
  struct Pointer {
    std::string type, name;
    bool stores;
    int index;
  };
  const std::vector<Pointer>& pointers() const { return pointers_; }
  const std::string& members() const { return members_; }
  const std::vector<Cell>& cells() const { return cells_; }

 private:
  void pointer(const std::string& name, const Operand& o, Cell::Kind kind, int index, std::int64_t further);
  void declare(const std::string& type, const std::string& name, const std::string& comment = "");
  void cell(std::int64_t value) { cells_.push_back({Cell::Kind::kNumber, value, 0}); }

  std::string members_;
  std::vector<Cell> cells_;
  std::vector<Pointer> pointers_;
};

}  // namespace kfusion::codegen
