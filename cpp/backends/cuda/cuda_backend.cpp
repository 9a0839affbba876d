// Loops on CUDA devices: generated kernels.
#include "codegen/generate.hpp"
#include "host/compile.hpp"
#include "host/cuda.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class CudaStep final : public ExecutableStep {
 public:
  CudaStep(Loops loops, bool aligned, int device)
      : kernel_(codegen::without_names(std::move(loops.kernel)), cuda::target(device), aligned),
        device_(device),
        compiling_(kernel_.source(), kernel_.entry(), device),
        launch_(kernel_.launch()),
        loads_(std::move(loops.loads)),
        stores_(std::move(loops.stores)) {}

  void finish() override {
    function_ = &compiling_.get();
    launch_ = cuda::fitted(*function_, kernel_.launch(), device_);
  }

  std::size_t workspace_bytes() const override { return launch_.workspace_bytes; }

  void run(const Frame& f) const override {
    const cuda::Standing standing(launch_.standing_bytes, f.device, f.stream);
    Addresses loads(loads_, f.slots), stores(stores_, f.slots);
    Room<std::byte, 1024> parameters(kernel_.parameter_bytes());
    kernel_.write_parameters(loads.data(), stores.data(), f.parameters, {f.workspace, standing.data()},
                             parameters.data());
    cuda::launch(*function_, launch_, parameters.data(), kernel_.parameter_bytes(), f.device, f.stream);
  }

 private:
  codegen::CudaKernel kernel_;
  int device_;
  cuda::Compiling compiling_;
  const cuda::Function* function_ = nullptr;
  codegen::Launch launch_;
  std::vector<int> loads_, stores_;
};

class Cuda final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  bool has(Pattern p, const Device& d) const override { return !d.is_cpu && is_loops(p); }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    if (!takes_at_reduced(k.graph, k.folded, k.nodes)) return std::nullopt;
    return "takes no elements at positions that a reduction in the same kernel gives";
  }
  StepPointer make_step(StepRequest& request) const override {
    return std::make_unique<CudaStep>(request.loops(), request.aligned(), request.place().index);
  }
};

}  // namespace

const Backend& cuda_backend() {
  static const Cuda backend;
  return backend;
}

}  // namespace kfusion
