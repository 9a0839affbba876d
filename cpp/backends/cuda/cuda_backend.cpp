// Loops on CUDA devices: generated kernels.
#include <algorithm>
#include <mutex>

#include "backends/cuda/cuda_steps.hpp"
#include "codegen/each_kernel.hpp"
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
  bool reads_first() const override { return kernel_.reads_first(); }

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

/// Tables that a kernel reads, on the device. One that was sent before is not sent again: an optimizer's arrays stay
/// where they are from step to step.
class Tables {
 public:
  /// Calls use(address) with a copy of `bytes` on the device, for what is launched on `stream` in the call.
  template <class Use>
  void with(const std::vector<std::byte>& bytes, int device, Stream stream, const Use& use) {
    if (cuda::is_capturing(device, stream)) return in_capture(bytes, device, stream, use);
    const std::uint64_t number = cuda::stream_number(device, stream);
    const std::lock_guard lock(mutex_);  // a table is not overwritten before what reads it is launched
    const auto is_same = [&](const Sent& s) { return s.stream == number && s.bytes == bytes; };
    auto found = std::ranges::find_if(sent_, is_same);
    if (found == sent_.end()) found = send(bytes, number, device, stream);
    found->last_use = ++uses_;
    use(found->at);
  }

 private:
  static constexpr std::ptrdiff_t kMostOfStream = 4, kMost = 32;

  struct Sent {
    std::uint64_t stream;
    std::vector<std::byte> bytes;
    std::byte* at;
    std::size_t room;
    std::uint64_t last_use;
  };
  using Iterator = std::vector<Sent>::iterator;

  /// Sends a table, in the place of the one that was not used for longest. The stream has read its own by then;
  /// another's is kept until the device was waited for.
  Iterator send(const std::vector<std::byte>& bytes, std::uint64_t number, int device, Stream stream) {
    const auto is_own = [&](const Sent& s) { return s.stream == number; };
    const bool full = std::ranges::count_if(sent_, is_own) >= kMostOfStream;
    if (full || std::ssize(sent_) >= kMost) {
      auto oldest = sent_.end();
      for (auto i = sent_.begin(); i != sent_.end(); ++i)
        if ((!full || is_own(*i)) && (oldest == sent_.end() || i->last_use < oldest->last_use)) oldest = i;
      is_own(*oldest) ? cuda::deallocate(oldest->at, device, stream)
                      : cuda::deallocate_array(oldest->at, oldest->room, device, true);
      sent_.erase(oldest);
    }
    auto* const at = static_cast<std::byte*>(cuda::allocate(bytes.size(), device, stream));
    sent_.push_back({number, {}, at, bytes.size(), 0});
    cuda::copy(at, bytes.data(), bytes.size(), device, stream);  // from pageable memory, which it has read by then
    sent_.back().bytes = bytes;
    return sent_.end() - 1;
  }

  /// A graph reads the host's copy each time that it is launched: that stays as long as the process.
  template <class Use>
  static void in_capture(const std::vector<std::byte>& bytes, int device, Stream stream, const Use& use) {
    const auto& kept = *new std::vector<std::byte>(bytes);
    const cuda::Workspace table(kept.size(), device, stream);
    cuda::copy(table.data(), kept.data(), kept.size(), device, stream);
    use(table.data());
  }

  std::mutex mutex_;
  std::vector<Sent> sent_;
  std::uint64_t uses_ = 0;
};

class CudaEach final : public EachStep {
 public:
  explicit CudaEach(EachRequest request)
      : kernel_(codegen::without_names(std::move(request.kernel)), request.loads, request.stores,
                static_cast<int>(request.arrays), cuda::target(request.place.index), request.aligned),
        device_(request.place.index),
        compiling_(kernel_.source(), kernel_.entry(), device_) {}

  void finish() override { function_ = &compiling_.get(); }

  void run(const ArraySets& sets, const double* parameters, Stream stream) const override {
    std::vector<codegen::ArraySet> all;
    for (std::size_t i = 0; i < sets.count(); ++i) all.push_back({sets.set(i), sets.elements(i)});
    const codegen::EachKernel::Table table = kernel_.table(all);
    Room<std::byte, 1024> bytes(kernel_.parameter_bytes());
    tables_.with(table.bytes, device_, stream, [&](const std::byte* at) {
      kernel_.write_parameters(table, at, parameters, bytes.data());
      cuda::launch(*function_, kernel_.launch(table), bytes.data(), kernel_.parameter_bytes(), device_, stream);
    });
  }

 private:
  codegen::EachKernel kernel_;
  int device_;
  cuda::Compiling compiling_;
  const cuda::Function* function_ = nullptr;
  mutable Tables tables_;
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
    return make_loops_step(request.loops(), request.aligned(), request.place().index);
  }
  EachPointer make_each(EachRequest request) const override { return std::make_unique<CudaEach>(std::move(request)); }
};

}  // namespace

StepPointer make_loops_step(Loops loops, bool aligned, int device) {
  return std::make_unique<CudaStep>(std::move(loops), aligned, device);
}

const Backend& cuda_backend() {
  static const Cuda backend;
  return backend;
}

}  // namespace kfusion
