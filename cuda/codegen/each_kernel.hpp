// A pointwise kernel that runs over many sets of dense arrays in one launch, as CUDA C++ (device/each.cuh).
#pragma once
#include <span>

#include "codegen/generate.hpp"

namespace kfusion::codegen {

/// Dense arrays that belong together: their addresses, and the elements of each.
struct ArraySet {
  std::byte* const* arrays;
  std::int64_t elements;
};

class EachKernel {
 public:
  /// `kernel`: of dense arrays of one axis. `loads` and `stores`: which of the `arrays` of a set they are. `aligned`:
  /// all arrays begin at multiples of 16 bytes.
  EachKernel(const Kernel& kernel, const std::vector<int>& loads, const std::vector<int>& stores, int arrays,
             const Target& target, bool aligned);

  const std::string& source() const { return source_; }
  const std::string& entry() const { return entry_; }

  /// Where parts of sets lie: what the kernel reads, from a multiple of 16 bytes on. No set is empty.
  struct Table {
    std::vector<std::byte> bytes;
    std::int64_t parts = 0;
    int sets = 0, part = 0;
  };
  Table table(std::span<const ArraySet> sets) const;
  Launch launch(const Table& table) const;

  /// The bytes of the one parameter. `values`: for Constant::parameter; `at`: where the table lies on the device.
  void write_parameters(const Table& table, const std::byte* at, const double* values, std::byte* to) const;
  std::size_t parameter_bytes() const { return (cells_.size() + 2) * sizeof(std::int64_t); }

 private:
  std::string source_, entry_;
  std::vector<Cell> cells_;
  std::vector<Constant> constants_;
  int arrays_, multiprocessors_, tile_;
};

}  // namespace kfusion::codegen
