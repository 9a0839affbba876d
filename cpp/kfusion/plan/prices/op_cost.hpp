// What a map takes on a device, beside the FLOPs that it counts as.
#pragma once
#include "kfusion/ops/op.hpp"
#include "kfusion/plan/device.hpp"

namespace kfusion {

/// FLOPs that the device's vector unit could do at its peak in the time of one of the op's FLOPs, arguments being
/// stored as `dtype`.
double work_of_flop(Op op, DType dtype, const Device& device);

}  // namespace kfusion
