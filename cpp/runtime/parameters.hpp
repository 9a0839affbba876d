// The float arguments of a call as kernels number them.
#pragma once
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// A float argument as a dtype has it.
struct Parameter {
  int number;
  DType dtype;
  bool operator==(const Parameter&) const = default;

  double value(const double* all) const;
};

/// Kernels number the parameters with their dtypes.
void number_parameters(Kernel& k, std::vector<Parameter>& parameters);

}  // namespace kfusion
