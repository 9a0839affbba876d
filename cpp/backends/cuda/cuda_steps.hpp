// Steps that backends of CUDA devices make of loops.
#pragma once
#include "runtime/backend.hpp"

namespace kfusion {

/// A generated kernel (codegen/generate.hpp). `aligned`: all arrays begin at multiples of 16 bytes.
StepPointer make_loops_step(Loops loops, bool aligned, int device);

}  // namespace kfusion
