// kfusion.Device as C++ sees it.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/plan/device.hpp"

namespace kfusion {

/// Reads the dict that kfusion.Device.to_dict() gives, whose values that class has checked. Other keys are ignored.
Device read_device(const pybind11::dict& fields);

}  // namespace kfusion
