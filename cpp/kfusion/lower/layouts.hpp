// How values between kernels lie in memory: in C order, or in the order of what they are made of.
//
// Images whose channels lie innermost are seen as (batch, channels, rows, columns) all the same. A map of such an image
// stored in C order would be a transposition, and so would what the array library makes of it.
#pragma once
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// The plan with other strides for some values that kernels store for kernels, and in all that reads them. Results of
/// the function lie as they did, and so does what an executor of `device` would not read otherwise.
Plan with_layouts(Plan plan, const Device& device);

}  // namespace kfusion
