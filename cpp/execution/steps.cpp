#include "execution/steps.hpp"

#include "codegen/generate.hpp"
#include "cpu/fused.hpp"
#include "host/compile.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kFewOperands = 16;

/// The addresses of operands; of few of them without an allocation.
class Addresses {
 public:
  Addresses(const std::vector<int>& slots, std::byte* const* all) {
    if (slots.size() > kFewOperands) many_.resize(slots.size());
    std::byte** to = slots.size() > kFewOperands ? many_.data() : few_;
    for (std::size_t i = 0; i < slots.size(); ++i) to[i] = all[slots[i]];
    data_ = to;
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  std::byte* const* data() const { return data_; }

 private:
  std::byte* few_[kFewOperands];
  std::vector<std::byte*> many_;
  std::byte* const* data_;
};

class CpuStep final : public ExecutableStep {
 public:
  CpuStep(const Kernel& k, Operands operands) : kernel_(k), operands_(std::move(operands)) {}

  void run(const Frame& f) const override {
    const Addresses loads(operands_.loads, f.slots), stores(operands_.stores, f.slots);
    kernel_.run(loads.data(), stores.data(), f.parameters);
  }

 private:
  cpu::FusedKernel kernel_;
  Operands operands_;
};

class CudaStep final : public ExecutableStep {
 public:
  CudaStep(const Kernel& k, Operands operands, bool aligned, int device)
      : kernel_(k, cuda::target(device), aligned),
        function_(cuda::compile(kernel_.source(), kernel_.entry(), device)),
        operands_(std::move(operands)) {}

  std::size_t workspace_bytes() const override { return kernel_.launch().workspace_bytes; }

  void run(const Frame& f) const override {
    const codegen::Launch& launch = kernel_.launch();
    if (launch.workspace_zeroed) cuda::clear(f.workspace, launch.workspace_bytes, f.device, f.stream);
    const Addresses loads(operands_.loads, f.slots), stores(operands_.stores, f.slots);
    const auto parameters = kernel_.parameters(loads.data(), stores.data(), f.parameters, f.workspace);
    cuda::launch(function_, launch, parameters.data(), parameters.size(), f.device, f.stream);
  }

 private:
  codegen::CudaKernel kernel_;
  const cuda::Function& function_;
  Operands operands_;
};

class LibraryStep final : public ExecutableStep {
 public:
  LibraryStep(const Node& n, std::vector<Seen> arguments, Seen result)
      : node_(n), arguments_(std::move(arguments)), result_(std::move(result)) {}

  void run(const Frame& f) const override {
    std::vector<View> arguments;
    for (const Seen& s : arguments_) arguments.push_back(placed(s, f));
    f.library->compute(node_, arguments, placed(result_, f), f.stream);
  }

 private:
  static View placed(const Seen& s, const Frame& f) {
    View v = s.view;
    v.data = f.slots[s.slot] + s.offset;
    return v;
  }

  Node node_;
  std::vector<Seen> arguments_;
  Seen result_;
};

}  // namespace

StepPointer make_cpu_step(const Kernel& k, Operands operands) {
  return std::make_unique<CpuStep>(k, std::move(operands));
}

StepPointer make_cuda_step(const Kernel& k, Operands operands, bool aligned, int device) {
  return std::make_unique<CudaStep>(k, std::move(operands), aligned, device);
}

StepPointer make_library_step(const Node& n, std::vector<Seen> arguments, Seen result) {
  return std::make_unique<LibraryStep>(n, std::move(arguments), std::move(result));
}

}  // namespace kfusion
