// What a function computes of its number arguments alone, before its kernels run.
#pragma once
#include <memory_resource>
#include <vector>

#include "python/fuse/signature.hpp"

namespace kfusion::fuse {

/// `kfusion._graph.number.Instruction`s, run with Python's own operations, and registers whose values are parameters of
/// kernels.
class Scalars {
 public:
  Scalars() = default;
  Scalars(const py::handle& instructions, const py::handle& parameters);

  /// What holds for one call.
  struct Evaluated {
    enum Kind {
      kAsTraced,
      kOtherAnswer,  ///< a comparison gives the other answer: that of instruction `number`
      kOtherwise     ///< Python raises an error, a value is of another type than when it was traced, or too large
    };
    Kind kind;
    int number = -1;
    const double* parameters = nullptr;  ///< the floats among the arguments, then what is computed; `room` holds it
  };

  /// Draws nothing: what is drawn is 0.
  Evaluated evaluate(const Signature& s, std::pmr::vector<double>& room) const;
  /// Puts what each call draws among the parameters that evaluate() has made.
  void draw(std::pmr::vector<double>& room) const;

  /// Appends what it owns, for Python's collector of cycles.
  void append_owned(std::vector<PyObject*>& to) const;

 private:
  /// Whether the parameters are the floats themselves.
  bool is_empty() const { return instructions_.empty() && parameters_.empty(); }

  struct Operand {
    int register_number;  ///< or -1:
    py::object constant;
  };
  struct Instruction {
    py::object function;
    std::vector<Operand> operands;  ///< none of what draws, on which no other instruction depends
    py::object expected;            ///< the result's type, or a comparison's answer

    bool is_comparison() const { return PyType_Check(expected.ptr()) == 0; }
  };
  std::vector<Instruction> instructions_;
  std::vector<int> parameters_;
};

}  // namespace kfusion::fuse
