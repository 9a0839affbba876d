// The enumerators of Op: a name for each row of ops.def.
#pragma once
#include "kfusion/ops/op.hpp"

namespace kfusion {

enum class Op : std::uint8_t {
#include "op_names.inc"  // written by cmake/ops.cmake, anew only when a name changes
};

}  // namespace kfusion
