// The function that XLA calls.
#pragma once
#include "python/jax/ffi_abi.hpp"

namespace kfusion::ffi {

/// Runs the executable that the attribute "key" names on the frame's buffers, without Python. Where the table does not
/// have it, it is made of the attribute "graph" first, with Python. What goes wrong is XLA's error, with our message.
Error* run_custom_call(CallFrame* frame);

/// The minor version that the handler says it was written for; XLA refuses those that it does not know.
void set_minor_version(int minor);

}  // namespace kfusion::ffi
