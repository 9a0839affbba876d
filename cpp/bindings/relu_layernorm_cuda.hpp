// ReLU + LayerNorm on CUDA: the plan of kfusion.relu_layernorm, made ready to run once for each layout of its arrays.
#pragma once
#include <memory>

#include "bindings/arrays/array.hpp"
#include "runtime/executable.hpp"

namespace kfusion {

/// One call's arrays, all on one CUDA device; weight and bias without a framework are absent.
struct ReluLayernorm {
  bool fused;
  const arrays::Array &x, &weight, &bias;
  const View& result;
  double eps;
};

/// Traces, plans and compiles where no such call has been before. Called with the GIL. Throws DeviceError.
std::shared_ptr<const Executable> relu_layernorm_on_cuda(const ReluLayernorm& call);

/// Enqueues it. Called without the GIL.
void run(const Executable& executable, const ReluLayernorm& call, Stream stream);

}  // namespace kfusion
