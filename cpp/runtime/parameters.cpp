#include "runtime/parameters.hpp"

#include <algorithm>

#include "kfusion/graph/constant.hpp"

namespace kfusion {

double Parameter::value(const double* all) const { return is_float(dtype) ? rounded(all[number], dtype) : all[number]; }

/// Kernels number the parameters with their dtypes.
void number_parameters(Kernel& k, std::vector<Parameter>& parameters) {
  for (Constant& c : k.constants) {
    if (c.parameter < 0) continue;
    const Parameter wanted{c.parameter, precision(c.dtype, c.wide)};
    const auto found = std::ranges::find(parameters, wanted);
    c.parameter = static_cast<int>(found - parameters.begin());
    if (found == parameters.end()) parameters.push_back(wanted);
  }
}

}  // namespace kfusion
