// What array libraries compute for a plan: products, convolutions and gathers, on strided views of its values.
#pragma once
#include "backends/array_library/array_library.hpp"
#include "bindings/arrays/array.hpp"

namespace kfusion::fuse {

/// By the functions of the call's arrays (arrays/library_functions.hpp), else by NumPy's. What neither has runs through
/// the reference interpreter on hosts; on devices it throws DeviceError.
class CallersLibrary final : public LibraryFunctions {
 public:
  CallersLibrary(const arrays::Call& call, const arrays::Framework& framework) : call_(call), framework_(framework) {}

  void compute(const Node& n, std::span<const View> arguments, const View& result, Stream stream) override;

 private:
  void compute_plainly(const Node& n, std::span<const View> arguments, const View& result) const;

  const arrays::Call& call_;
  const arrays::Framework& framework_;
};

}  // namespace kfusion::fuse
