// The calculator's keys.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/savings.hpp"

namespace kfusion {

/// As kfusion.savings returns them; for no ops the first four.
pybind11::dict to_dict(const Savings& s, bool no_ops);

}  // namespace kfusion
