// Products with what follows them, on the tensor cores of compute capability 9.0: generated kernels.
#include "backends/cuda/aligned_factors.hpp"
#include "codegen/contractions/contraction_kernel.hpp"
#include "host/compile.hpp"
#include "host/cuda.hpp"
#include "host/encoded_matrices.hpp"
#include "host/tensor_map.hpp"
#include "kfusion/plan/prices/flops.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class ContractionStep final : public ExecutableStep {
 public:
  ContractionStep(const std::vector<Contracted>& beside, bool aligned, int device)
      : kernel_(without_names(beside), cuda::target(device), aligned),
        device_(device),
        compiling_(kernel_.source(), kernel_.entry(), device, true),
        launch_(kernel_.launch()),
        factors_(launch_.workspace_bytes) {
    for (const Contracted& c : beside) {
      const auto append = [](std::vector<int>& to, const std::vector<int>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(left_, c.left), append(right_, c.right), append(loads_, c.loads), append(stores_, c.stores);
      if (aligned) continue;
      for (const Product& p : c.contraction.products) {
        factors_.add(p.left, c.contraction, c.contraction.rows);
        factors_.add(p.right, c.contraction, c.contraction.cols);
      }
    }
    workspace_bytes_ = factors_.workspace_bytes();
    for (const auto& [from, to] : kernel_.sums_apart()) {
      const std::vector<int>& slots = beside[0].stores;
      Loops loops{sums_of_columns(beside[0].contraction, from, to), {slots[at(from)]}, {slots[at(to)]}};
      sums_.push_back(make_loops_step(std::move(loops), aligned, device));
    }
  }

  void finish() override {
    function_ = &compiling_.get();
    launch_ = cuda::fitted(*function_, kernel_.launch(), device_);
    for (const StepPointer& sums : sums_) {
      sums->finish();
      workspace_bytes_ = std::max(workspace_bytes_, sums->workspace_bytes());
    }
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const Frame& f) const override {
    const cuda::Standing standing(launch_.standing_bytes, f.device, f.stream);
    const std::byte *left[codegen::kMostBeside] = {}, *right[codegen::kMostBeside] = {};
    for (std::size_t i = 0; i < left_.size(); ++i) {
      left[i] = f.slots[left_[i]];
      right[i] = f.slots[right_[i]];
    }
    for (std::size_t i = 0; i < factors_.size(); ++i) factors_.bring(i, (i % 2 == 0 ? left : right)[i / 2], f);
    Room<const std::byte*, 16> loads(loads_.size());
    for (std::size_t i = 0; i < loads_.size(); ++i) loads[i] = loads_[i] < 0 ? nullptr : f.slots[loads_[i]];
    Addresses stores(stores_, f.slots);
    Room<std::byte, 2048> parameters(kernel_.parameter_bytes());
    static const codegen::EncodeMatrix encode = cuda::encode;
    cuda::EncodedMatrices::Launch matrices(matrices_, encode);
    kernel_.write_parameters({left, right, loads.data(), stores.data()}, f.parameters, {f.workspace, standing.data()},
                             std::ref(matrices), parameters.data());
    cuda::launch(*function_, launch_, parameters.data(), kernel_.parameter_bytes(), f.device, f.stream);
    for (const StepPointer& sums : sums_) sums->run(f);
  }

 private:
  static std::vector<Contraction> without_names(const std::vector<Contracted>& beside) {
    std::vector<Contraction> all;
    for (const Contracted& c : beside) all.push_back(codegen::without_names(c.contraction));
    return all;
  }

  codegen::ContractionKernel kernel_;
  int device_;
  cuda::Compiling compiling_;
  const cuda::Function* function_ = nullptr;
  codegen::Launch launch_;
  AlignedFactors factors_;                          ///< left and right ones in turns
  std::vector<int> left_, right_, loads_, stores_;  ///< slots; of loads -1 for a product's elements
  std::vector<StepPointer> sums_;                   ///< of columns, which the kernel leaves to others
  cuda::EncodedMatrices matrices_;
  std::size_t workspace_bytes_ = 0;
};

class TensorCores final : public Backend {
 public:
  std::string_view name() const override { return "tensor_cores"; }
  bool has(Pattern p, const Device& d) const override {
    return d.compute_capability == 90 && (p == Pattern::kMatmul || p == Pattern::kContractionReduction);
  }
  std::optional<std::string> refusal(const Candidate& k, const Device& device) const override {
    if (auto why = codegen::why_no_tensor_core_kernel(k)) return why;
    const std::vector<Contraction> all = products_beside(k);
    if (all.size() > 1 && us_of(all, device) >= us_apart(all, device))
      return "computes these products in less time one after the other";
    return std::nullopt;
  }

  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    const std::vector<Contraction> all = products_beside(candidate_of(plan, group));
    if (all.empty()) return roofline;
    Price p = roofline;
    p.launch_us = device.launch_us;
    const Tiles tiles = tiles_of(all, device, arrays_of(plan.graph, group, all));
    if (tiles.wait_for_bytes)
      p.memory_us = std::max(p.memory_us, tiles.us);
    else
      p.compute_us = tiles.us + (all[0].reduces == Reduces::kNothing ? kEpilogueShare * p.vector_us : 0);
    p.compute_us += branching_us(plan, group, device);
    p.compute_us += kOddRowsFactor * odd_rows_us(all, device);
    settle(p);
    return p;
  }

  std::string how(const Plan& plan, const Group& group, const Device& device) const override {
    const std::vector<Contraction> all = products_beside(candidate_of(plan, group));
    if (all.empty()) return {};
    const codegen::Tile tile =
        codegen::predicted_tile(all, arrays_of(plan.graph, group, all), codegen::target_of(device)).tile;
    const std::string by =
        tile.cluster() == 1 ? " by single blocks" : " by clusters of " + std::to_string(tile.cluster()) + " blocks";
    const int rows = tile.turned ? tile.cols : tile.rows, cols = tile.turned ? tile.rows : tile.cols;
    const std::string beside = all.size() > 1 ? std::to_string(all.size()) + " products beside one another, in " : "";
    return beside + "tiles of " + std::to_string(rows) + " x " + std::to_string(cols) + by;
  }

  StepPointer make_step(StepRequest& request) const override {
    return std::make_unique<ContractionStep>(request.contractions(), request.aligned(), request.place().index);
  }

 private:
  /// Share of an epilogue's computing that takes time; the rest overlaps with the other warpgroup's products. Gradients
  /// of gelu by erf add 19 of their 44 us to 8192 x 4096 (H200, depth 1024).
  static constexpr double kEpilogueShare = 0.5;

  /// An unaligned result is stored element by element, during which no product runs: so many times its bytes at the
  /// bandwidth. 8192 x 50257 of depth 1024 take 2735 us, where 8192 x 50264 take 1142 (H200).
  static constexpr double kOddRowsFactor = 8.1;

  /// Functions that branch for large or special arguments keep a thread from computing its elements side by side, which
  /// the two warps of a scheduler do not make up for: so many times what they take elsewhere. sin adds 73 us to 2048 x
  /// 4096, power 132 (H200, bfloat16, depth 4096).
  static constexpr double kBranchFactor = 5;

  static double branching_us(const Plan& plan, const Group& group, const Device& device) {
    double us = 0;
    for (const NodeId id : group.nodes) {
      const Node& n = plan.graph[id];
      const OpInfo& row = info(n.op);
      const bool branches = row.kind == OpKind::kMap && row.cost >= OpCost::kSine && !row.has(kQuick);
      if (branches && is_float(n.dtype)) us += kfusion::us_of(flops_of(plan.graph, id, n.size(), device), device);
    }
    return kBranchFactor * us;
  }

  static double odd_rows_us(const std::vector<Contraction>& all, const Device& device) {
    const DType dtype = all[0].products[0].dtype;
    double elements = 0;
    for (const Contraction& c : all)
      if (c.reduces == Reduces::kNothing && !has_aligned_rows(c.cols, dtype) && c.rows > 1)
        elements += static_cast<double>(c.batches * c.rows) * static_cast<double>(c.cols);
    return elements * static_cast<double>(item_bytes(dtype)) / device.bandwidth * 1e6;
  }

  /// Arrays of the product's size that the epilogue reads and stores: a few of each, of half types, move by boxes.
  static codegen::EpilogueArrays arrays_of(const Graph& g, const Group& group, const std::vector<Contraction>& all) {
    const Contraction& c = all[0];
    codegen::EpilogueArrays arrays;
    if (all.size() > 1 || c.reduces != Reduces::kNothing) return arrays;
    const std::int64_t elements = c.batches * c.rows * c.cols;
    const auto count = [&](DType dtype, int& boxes) {
      ++(is_half(dtype) && boxes < static_cast<int>(codegen::kMostBoxes) ? boxes : arrays.loose);
    };
    for (const NodeId n : group.stores)
      if (g[n].size() == elements) count(g[n].dtype, arrays.results);
    for (const Load& load : group.loads)
      if (kind(g[load.reader].op) != OpKind::kContraction && distinct_elements(load.access) == elements)
        count(g[load.access.base].dtype, arrays.operands);
    return arrays;
  }

  struct Tiles {
    double us;
    bool wait_for_bytes;
  };

  /// By the cycles that they take (codegen/contractions/tile.cpp).
  static Tiles tiles_of(const std::vector<Contraction>& all, const Device& device,
                        const codegen::EpilogueArrays& moved = {}) {
    constexpr double kMultiplyAdds = 2048;  // of a multiprocessor, a cycle
    const double clock = peak_flops(device, all[0].products[0].dtype, true) / (2 * kMultiplyAdds * device.units);
    const codegen::ChosenTile chosen = codegen::predicted_tile(all, moved, codegen::target_of(device));
    return {chosen.peak_cycles / clock * 1e6, chosen.waits_for_bytes};
  }

  /// Time of one kernel of single products beside one another, without their epilogues.
  static double us_of(const std::vector<Contraction>& all, const Device& device) {
    double elements = 0;
    for (const Contraction& c : all) {
      if (&c == all.data() || !have_one_left(all)) elements += left_factor(c);
      elements += weights_and_result(c);
    }
    const double bytes = elements * static_cast<double>(item_bytes(all[0].products[0].dtype));
    return device.launch_us + std::max(bytes / device.bandwidth * 1e6, tiles_of(all, device).us);
  }

  /// Time of one kernel for each of them, ours or the library's.
  static double us_apart(const std::vector<Contraction>& all, const Device& device) {
    double us = 0;
    for (const Contraction& c : all) {
      Price p;
      p.launch_us = device.launch_us;
      const double elements = left_factor(c) + weights_and_result(c);
      p.memory_us = elements * static_cast<double>(item_bytes(c.products[0].dtype)) / device.bandwidth * 1e6;
      p.compute_us = c.flops() / peak_flops(device, c.products[0].dtype, true) * 1e6;
      us += std::min(us_of({c}, device), product_price(p, device).total_us);
    }
    return us;
  }

  static double left_factor(const Contraction& c) { return static_cast<double>(c.rows) * static_cast<double>(c.depth); }
  static double weights_and_result(const Contraction& c) {
    return static_cast<double>(c.cols) * static_cast<double>(c.depth + c.rows);
  }
};

}  // namespace

const Backend& tensor_cores_backend() {
  static const TensorCores backend;
  return backend;
}

}  // namespace kfusion
