// The calculator's keys.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/savings.hpp"

namespace kfusion {

/// The dict that kfusion.savings returns; for no ops its first four keys.
pybind11::dict to_dict(const Savings& s, bool no_ops);

}  // namespace kfusion
