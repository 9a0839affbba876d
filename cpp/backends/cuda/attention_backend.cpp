// softmax(q k^T) v in one kernel, on the tensor cores of compute capability 9.0.
#include <algorithm>
#include <cmath>

#include "backends/cuda/aligned_factors.hpp"
#include "codegen/attention/attention_kernel.hpp"
#include "host/compile.hpp"
#include "host/cuda.hpp"
#include "host/tensor_map.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/graph/constant.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class AttentionStep final : public ExecutableStep {
 public:
  AttentionStep(Attended given, bool aligned, int device)
      : kernel_(codegen::without_names(given.attention), cuda::target(device), aligned),
        compiling_(kernel_.source(), kernel_.entry(), device, true),
        slots_(std::move(given)),
        factors_(kernel_.launch().workspace_bytes) {
    if (aligned) return;
    const Contraction &scores = slots_.attention.scores, &output = slots_.attention.output;
    factors_.add(scores.products[0].left, scores, scores.rows);
    factors_.add(scores.products[0].right, scores, scores.cols);
    factors_.add(output.products[0].right, output, output.cols);
  }

  void finish() override { function_ = &compiling_.get(); }

  std::size_t workspace_bytes() const override { return factors_.workspace_bytes(); }

  void run(const Frame& f) const override {
    const codegen::Launch& launch = kernel_.launch();
    const cuda::Standing standing(launch.standing_bytes, f.device, f.stream);
    const std::byte* arrays[] = {f.slots[slots_.scores.left[0]], f.slots[slots_.scores.right[0]],
                                 f.slots[slots_.output.right[0]]};
    for (std::size_t i = 0; i < factors_.size(); ++i) factors_.bring(i, arrays[i], f);
    Addresses stores(slots_.output.stores, f.slots);
    Loads scores(slots_.scores.loads, f), output(slots_.output.loads, f);
    Room<std::byte, 2048> parameters(kernel_.parameter_bytes());
    kernel_.write_parameters({arrays[0], arrays[1], arrays[2], scores.data(), output.data(), stores.data()},
                             f.parameters, {f.workspace, standing.data()}, cuda::encode, parameters.data());
    cuda::launch(*function_, launch, parameters.data(), kernel_.parameter_bytes(), f.device, f.stream);
  }

 private:
  class Loads {
   public:
    Loads(const std::vector<int>& slots, const Frame& f) : of_(slots.size()) {
      for (std::size_t i = 0; i < slots.size(); ++i) of_[i] = slots[i] < 0 ? nullptr : f.slots[slots[i]];
    }
    const std::byte* const* data() { return of_.data(); }

   private:
    Room<const std::byte*, 16> of_;
  };

  codegen::AttentionKernel kernel_;
  cuda::Compiling compiling_;
  const cuda::Function* function_ = nullptr;
  Attended slots_;
  AlignedFactors factors_;  ///< queries, keys, values
};

/// Whether scores are products but for constant factors, and masks: what the graph says before it is lowered.
struct Scores {
  bool plain = true, masked = false;
  DType type = DType::kFloat32;  ///< of the exponentials' arguments

  explicit Scores(const Candidate& k) {
    const auto is_position = [&](const Access& a) { return k.graph[a.base].op == Op::iota; };
    bool positions = false, hides = false;
    for (const NodeId n : k.nodes) {
      const Op op = k.graph[n].op;
      const auto& reads = k.folded.work[at(n)].reads;
      positions |= std::ranges::any_of(reads, is_position);
      hides |= std::ranges::any_of(reads, [&](const Access& a) { return is_minus_infinity(k.graph[a.base]); });
      plain &= op != Op::tanh && op != Op::add;
      if (op == Op::exp) type = k.graph[n].dtype;
    }
    masked = positions && hides;
  }
};

class AttentionBackend final : public Backend {
 public:
  std::string_view name() const override { return "tensor_core_attention"; }
  bool has(Pattern p, const Device& d) const override { return d.compute_capability == 90 && p == Pattern::kAttention; }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    return codegen::why_no_attention_kernel(k);
  }

  /// The price follows the measured rate of a multiprocessor that multiplies (b4 h16 s4096, H100): 0.55 of the peak for
  /// heads of 64 numbers, 0.72 for 128, 0.78 for more; scores that are computed of more than the product take 1.25 of
  /// the time. A mask of positions that leaves half of the scores out takes 0.62 of the time, and more with fewer keys,
  /// since blocks on the diagonal are computed whole. The price ignores a bias that comes by boxes, which may make
  /// blocks of keys smaller.
  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    const Candidate k = candidate_of(plan, group);
    const auto a = attention_of(k);
    if (!a) return roofline;
    const Scores scores(k);
    const codegen::AttentionCut cut = codegen::attention_cut(*a, scores.plain, false, codegen::target_of(device));
    const int numbers = std::max(cut.depth, cut.values);
    const double efficiency = numbers <= 64 ? 0.55 : numbers <= 128 ? 0.72 : 0.78;
    const double tiles =
        static_cast<double>(a->scores.batches * divide_up(a->scores.rows, std::int64_t{cut.rows()})) * cut.parts;
    const double rounds = std::ceil(tiles / device.units) * device.units / tiles;
    const double rows = static_cast<double>(round_up(a->scores.rows, cut.rows()));
    const double work = (a->scores.flops() + a->output.flops()) * rows / static_cast<double>(a->scores.rows);
    Price p = roofline;
    p.launch_us = device.launch_us;
    const DType type = a->scores.products[0].dtype;
    const double on_diagonal = (cut.rows() + cut.keys) / 2.0 / static_cast<double>(a->scores.cols);
    const double plain_us = work * (scores.masked ? std::min(0.58 + on_diagonal, 1.0) : 1.0) * rounds /
                            (efficiency * peak_flops(device, type, true)) * 1e6;
    const double all = static_cast<double>(a->scores.batches) * static_cast<double>(a->scores.rows * a->scores.cols);
    p.compute_us = std::max(plain_us * (scores.plain ? 1.0 : 1.25),
                            plain_us + kMapsShare * beyond_softmax_us(roofline, scores.type, all, device));
    settle(p, kStartUs);
    return p;
  }

  std::string how(const Plan& plan, const Group& group, const Device& device) const override {
    const Candidate k = candidate_of(plan, group);
    const auto a = attention_of(k);
    if (!a) return {};
    const codegen::AttentionCut cut = codegen::attention_cut(*a, Scores(k).plain, false, codegen::target_of(device));
    std::string text = "blocks of " + std::to_string(cut.rows()) + " x " + std::to_string(cut.keys);
    if (cut.parts > 1) text += ", keys in " + std::to_string(cut.parts) + " parts";
    return text;
  }

  StepPointer make_step(StepRequest& request) const override {
    return std::make_unique<AttentionStep>(request.attention(), request.aligned(), request.place().index);
  }

 private:
  static constexpr double kStartUs = 3;  ///< of the first loads and the last stores
  /// The share of the maps' time that counts: the rest runs beside the other warpgroup's products.
  static constexpr double kMapsShare = 0.5;
};

}  // namespace

const Backend& attention_backend() {
  static const AttentionBackend backend;
  return backend;
}

}  // namespace kfusion
