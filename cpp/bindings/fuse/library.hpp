// What array libraries compute for a plan: products, convolutions and gathers, on strided views of its values.
#pragma once
#include "bindings/arrays/array.hpp"
#include "execution/executable.hpp"

namespace kfusion::fuse {

/// Through the library of the call's arrays: NumPy's matmul for NumPy's, JAX's and others' on the CPU, torch's and
/// CuPy's functions for their own. What the library lacks or does otherwise runs through the reference executor on the
/// CPU; on CUDA it throws DeviceError.
class CallersLibrary final : public ArrayLibrary {
 public:
  CallersLibrary(const arrays::Call& call, const arrays::Framework& framework) : call_(call), framework_(framework) {}

  void compute(const Node& n, std::span<const View> arguments, const View& result, cuda::Stream stream) override;

 private:
  void compute_plainly(const Node& n, std::span<const View> arguments, const View& result) const;

  const arrays::Call& call_;
  const arrays::Framework& framework_;
};

}  // namespace kfusion::fuse
