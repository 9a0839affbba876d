// Loops on the CPU.
#include <algorithm>

#include "cpu/job.hpp"
#include "cpu/loops/loop_kernel.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"
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
  cpu::LoopKernel kernel_;
  std::vector<int> loads_, stores_;
};

/// Threads share out pieces of all arrays, one behind the other, so that none waits at the end of a small one.
class CpuEach final : public EachStep {
 public:
  explicit CpuEach(EachRequest request)
      : kernel_(request.kernel), loads_(std::move(request.loads)), stores_(std::move(request.stores)) {}

  void run(const ArraySets& sets, const double* parameters, Stream) const override {
    std::vector<std::int64_t> ends;  // of each set, in pieces
    std::int64_t pieces = 0;
    for (std::size_t i = 0; i < sets.count(); ++i) ends.push_back(pieces += divide_up(sets.elements(i), kPiece));
    const int threads = cpu::threads_for(kernel_.work(sets.all_elements()));
    kernel_.compile(false);
    cpu::parallel_for(pieces, threads, [&](std::int64_t first, std::int64_t last) {
      auto set = static_cast<std::size_t>(std::ranges::upper_bound(ends, first) - ends.begin());
      for (std::int64_t p = first; p < last; ++set) {
        const std::int64_t before = set == 0 ? 0 : ends[set - 1], end = std::min(last, ends[set]);
        Addresses loads(loads_, sets.set(set)), stores(stores_, sets.set(set));
        kernel_.run_range(loads.data(), stores.data(), parameters, (p - before) * kPiece,
                          std::min(sets.elements(set), (end - before) * kPiece));
        p = end;
      }
    });
  }

 private:
  static constexpr std::int64_t kPiece = 4096;

  cpu::LoopKernel kernel_;
  std::vector<int> loads_, stores_;
};

class Cpu final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  bool has(Pattern p, const Device& d) const override { return d.is_cpu && is_loops(p); }
  StepPointer make_step(StepRequest& request) const override { return std::make_unique<CpuStep>(request.loops()); }
  EachPointer make_each(EachRequest request) const override { return std::make_unique<CpuEach>(std::move(request)); }
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu backend;
  return backend;
}

}  // namespace kfusion
