// What a function computes of its number arguments alone, before its kernels run.
#pragma once
#include <memory_resource>
#include <vector>

#include "bindings/fuse/signature.hpp"

namespace kfusion::fuse {

/// `kfusion._graph.number.Instruction`s, run with Python's own operations, and registers whose values are parameters of
/// kernels.
class Scalars {
 public:
  Scalars() = default;
  Scalars(const py::handle& instructions, const py::handle& parameters);

  /// The parameters of one call: the floats among its arguments, then these values. nullptr where Python raises an
  /// error, or where a value is of another type than when it was traced, or too large: the call is to be traced with
  /// its numbers as they are. `room` holds what is made.
  const double* evaluate(const Signature& s, std::pmr::vector<double>& room) const;

  /// Whether the parameters are the floats themselves.
  bool is_empty() const { return instructions_.empty() && parameters_.empty(); }

  /// For Python's collector of cycles.
  void append_owned(std::vector<PyObject*>& to) const;

 private:
  struct Operand {
    int register_number;  ///< or -1:
    py::object constant;
  };
  struct Instruction {
    py::object function;
    std::vector<Operand> operands;
    py::object type;
  };
  std::vector<Instruction> instructions_;
  std::vector<int> parameters_;
};

}  // namespace kfusion::fuse
