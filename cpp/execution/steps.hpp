// The parts of an executable: one for each group of its plan.
#pragma once
#include <memory>
#include <vector>

#include "execution/executable.hpp"

namespace kfusion {

/// Where the values of one run lie: by slot, the address of element 0.
struct Frame {
  std::byte* const* slots;
  std::byte* workspace;      ///< of the step that runs
  const double* parameters;  ///< as the kernels number them
  int device;
  cuda::Stream stream;
  ArrayLibrary* library;
};

class ExecutableStep {
 public:
  virtual ~ExecutableStep() = default;
  virtual void run(const Frame& frame) const = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
};
using StepPointer = std::unique_ptr<const ExecutableStep>;

/// The slots of a kernel's loads and stores, in order.
struct Operands {
  std::vector<int> loads, stores;
};

StepPointer make_cpu_step(const Kernel& k, Operands operands);
StepPointer make_cuda_step(const Kernel& k, Operands operands, bool aligned, int device);

/// A value as a library's function sees it.
struct Seen {
  int slot = 0;
  View view;                ///< without data
  std::int64_t offset = 0;  ///< of its first element, in bytes
};
StepPointer make_library_step(const Node& n, std::vector<Seen> arguments, Seen result);

}  // namespace kfusion
