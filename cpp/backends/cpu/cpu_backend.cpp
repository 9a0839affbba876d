// Loops on the CPU: threaded programs over register tiles.
#include "cpu/fused/fused.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class CpuStep final : public ExecutableStep {
 public:
  explicit CpuStep(Loops loops) : kernel_(loops.kernel), loads_(std::move(loops.loads)), stores_(loops.stores) {}

  void run(const Frame& f) const override {
    Addresses loads(loads_, f.slots), stores(stores_, f.slots);
    kernel_.run(loads.data(), stores.data(), f.parameters);
  }

 private:
  cpu::FusedKernel kernel_;
  std::vector<int> loads_, stores_;
};

class Cpu final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  bool has(Pattern p, const Device& d) const override { return d.is_cpu && is_loops(p); }
  StepPointer make_step(StepRequest& request) const override { return std::make_unique<CpuStep>(request.loops()); }
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu backend;
  return backend;
}

}  // namespace kfusion
