#include "execution/steps.hpp"

#include "codegen/generate.hpp"
#include "cpu/fused/fused.hpp"
#include "host/compile.hpp"
#include "kfusion/room.hpp"

namespace kfusion {
namespace {

/// The addresses of operands.
class Addresses {
 public:
  Addresses(const std::vector<int>& slots, std::byte* const* all) : of_(slots.size()) {
    for (std::size_t i = 0; i < slots.size(); ++i) of_[i] = all[slots[i]];
  }
  std::byte* const* data() { return of_.data(); }

 private:
  Room<std::byte*, 16> of_;
};

class CpuStep final : public ExecutableStep {
 public:
  CpuStep(const Kernel& k, Operands operands) : kernel_(k), operands_(std::move(operands)) {}

  void run(const Frame& f) const override {
    Addresses loads(operands_.loads, f.slots), stores(operands_.stores, f.slots);
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
        launch_(cuda::fitted(function_, kernel_.launch(), device)),
        operands_(std::move(operands)) {}

  std::size_t workspace_bytes() const override { return launch_.workspace_bytes; }

  void run(const Frame& f) const override {
    const cuda::Standing standing(launch_.standing_bytes, f.device, f.stream);
    Addresses loads(operands_.loads, f.slots), stores(operands_.stores, f.slots);
    Room<std::byte, 1024> parameters(kernel_.parameter_bytes());
    kernel_.write_parameters(loads.data(), stores.data(), f.parameters, {f.workspace, standing.data()},
                             parameters.data());
    cuda::launch(function_, launch_, parameters.data(), kernel_.parameter_bytes(), f.device, f.stream);
  }

 private:
  codegen::CudaKernel kernel_;
  const cuda::Function& function_;
  codegen::Launch launch_;
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
