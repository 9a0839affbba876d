// Products with what follows them, on the tensor cores of compute capability 9.0: generated kernels.
#include "codegen/contractions/contraction_kernel.hpp"
#include "host/compile.hpp"
#include "host/cuda.hpp"
#include "host/encoded_matrices.hpp"
#include "host/tensor_map.hpp"
#include "kfusion/plan/price.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kCopyEngineBytes = 16;  ///< at multiples of which it finds matrices

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// From its first element to its last one.
std::size_t span_bytes(const Factor& f, std::int64_t batches, std::int64_t extent, std::int64_t depth) {
  const std::int64_t last = (batches - 1) * f.batch + (extent - 1) * f.outer + (depth - 1) * f.depth;
  return static_cast<std::size_t>(last + 1) * item_bytes(f.dtype);
}

class ContractionStep final : public ExecutableStep {
 public:
  ContractionStep(Contracted c, bool aligned, int device)
      : kernel_(codegen::without_names(c.contraction), cuda::target(device), aligned),
        device_(device),
        compiling_(kernel_.source(), kernel_.entry(), device, true),
        launch_(kernel_.launch()),
        slots_(std::move(c)) {
    const Contraction& all = slots_.contraction;
    workspace_bytes_ = rounded_up(launch_.workspace_bytes);
    if (aligned) return;
    for (const Product& p : all.products) {
      copies_.push_back({span_bytes(p.left, all.batches, all.rows, all.depth), p.left});
      copies_.push_back({span_bytes(p.right, all.batches, all.cols, all.depth), p.right});
    }
    for (const Copy& copy : copies_) workspace_bytes_ += rounded_up(copy.bytes);
  }

  void finish() override {
    function_ = &compiling_.get();
    launch_ = cuda::fitted(*function_, kernel_.launch(), device_);
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const Frame& f) const override {
    const cuda::Standing standing(launch_.standing_bytes, f.device, f.stream);
    const Contraction& c = slots_.contraction;
    const std::byte *left[2] = {}, *right[2] = {};
    for (std::size_t i = 0; i < c.products.size(); ++i) {
      left[i] = f.slots[slots_.left[i]];
      right[i] = f.slots[slots_.right[i]];
    }
    bring_to_multiples(f, left, right);
    Room<const std::byte*, 16> loads(slots_.loads.size());
    for (std::size_t i = 0; i < slots_.loads.size(); ++i)
      loads[i] = slots_.loads[i] < 0 ? nullptr : f.slots[slots_.loads[i]];
    Addresses stores(slots_.stores, f.slots);
    Room<std::byte, 2048> parameters(kernel_.parameter_bytes());
    static const codegen::EncodeMatrix encode = cuda::encode;
    cuda::EncodedMatrices::Launch matrices(matrices_, encode);
    kernel_.write_parameters({left, right, loads.data(), stores.data()}, f.parameters, {f.workspace, standing.data()},
                             std::ref(matrices), parameters.data());
    cuda::launch(*function_, launch_, parameters.data(), kernel_.parameter_bytes(), f.device, f.stream);
  }

 private:
  struct Copy {
    std::size_t bytes;
    Factor factor;
  };

  /// Copies factors of the caller that the copy engine cannot read where they lie.
  void bring_to_multiples(const Frame& f, const std::byte** left, const std::byte** right) const {
    std::byte* free = f.workspace + rounded_up(launch_.workspace_bytes);
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const std::byte*& array = (i % 2 == 0 ? left : right)[i / 2];
      const auto offset = copies_[i].factor.offset * static_cast<std::int64_t>(item_bytes(copies_[i].factor.dtype));
      if (reinterpret_cast<std::uintptr_t>(array + offset) % kCopyEngineBytes != 0) {
        cuda::copy(free, array + offset, copies_[i].bytes, f.device, f.stream);
        array = free - offset;
      }
      free += rounded_up(copies_[i].bytes);
    }
  }

  codegen::ContractionKernel kernel_;
  int device_;
  cuda::Compiling compiling_;
  const cuda::Function* function_ = nullptr;
  codegen::Launch launch_;
  Contracted slots_;
  std::vector<Copy> copies_;
  cuda::EncodedMatrices matrices_;
  std::size_t workspace_bytes_ = 0;
};

class TensorCores final : public Backend {
 public:
  std::string_view name() const override { return "tensor_cores"; }
  bool has(Pattern p, const Device& d) const override {
    return d.compute_capability == 90 && (p == Pattern::kMatmul || p == Pattern::kContractionReduction);
  }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    return codegen::no_tensor_core_kernel(k);
  }

  /// By the cycles that its tiles take (codegen/contractions/tile.cpp), at what the power limit leaves of the clock
  /// that the peak stands for: 0.79 to 0.82 of it, measured for products from 10^10 to 10^12 operations (H100).
  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    constexpr double kMultiplyAdds = 2048, kOfClock = 0.8;  // of a multiprocessor, a cycle
    const auto c = products_of(candidate_of(plan, group));
    if (!c) return roofline;
    const double clock = peak_flops(device, c->products[0].dtype, true) / (2 * kMultiplyAdds * device.units);
    Price p = roofline;
    p.launch_us = device.launch_us;
    p.compute_us = codegen::predicted_tile(*c, target(device)).cycles / (kOfClock * clock) * 1e6;
    p.total_us = p.launch_us + std::max(p.memory_us, p.compute_us);
    p.bound = bound_of(p);
    return p;
  }

  std::string how(const Plan& plan, const Group& group, const Device& device) const override {
    const auto c = products_of(candidate_of(plan, group));
    if (!c) return {};
    const codegen::Tile tile = codegen::predicted_tile(*c, target(device)).tile;
    const std::string by =
        tile.cluster() == 1 ? " by single blocks" : " by clusters of " + std::to_string(tile.cluster()) + " blocks";
    const int rows = tile.turned ? tile.cols : tile.rows, cols = tile.turned ? tile.rows : tile.cols;
    return "tiles of " + std::to_string(rows) + " x " + std::to_string(cols) + by;
  }

  StepPointer make_step(StepRequest& request) const override {
    return std::make_unique<ContractionStep>(request.contraction(), request.aligned(), request.place().index);
  }

 private:
  static codegen::Target target(const Device& device) {
    codegen::Target t;
    t.multiprocessors = device.units;
    t.shared_bytes = static_cast<int>(device.tile_bytes);
    return t;
  }
};

}  // namespace

const Backend& tensor_cores_backend() {
  static const TensorCores backend;
  return backend;
}

}  // namespace kfusion
