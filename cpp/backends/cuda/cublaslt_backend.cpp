// Products whose epilogue cuBLASLt has: a bias, a matrix that is added, relu or gelu. On every GPU from compute
// capability 8.0 on.
#include <algorithm>
#include <stdexcept>

#include "backends/cuda/blas_call.hpp"
#include "host/cublaslt.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

BlasCall call_of(const Plan& plan, const Group& group) {
  std::string why;
  auto call = blas_call(candidate_of(plan, group), why);
  if (!call) throw std::logic_error("kfusion: cublaslt was to compute what it refuses: it " + why);
  return std::move(*call);
}

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(item_bytes(dtype));
}

/// Where an operand lies of which a step makes an address.
struct Placed {
  int slot = -1;
  std::int64_t offset = 0;  ///< bytes

  std::byte* in(const Frame& f) const { return slot < 0 ? nullptr : f.slots[slot] + offset; }
};

class LtStep final : public ExecutableStep {
 public:
  LtStep(const BlasCall& call, const Contracted& c, int device) : kernel_(described(call, c), device) {}

  std::size_t workspace_bytes() const override { return kernel_.workspace_bytes(); }

  void run(const Frame& f) const override {
    kernel_.run({left_.in(f), right_.in(f), added_.in(f), bias_.in(f), result_.in(f)}, f.workspace, f.device, f.stream);
  }

 private:
  cuda::LtProduct described(const BlasCall& call, const Contracted& c) {
    const Contraction& all = c.contraction;
    const Product& product = all.products.at(0);
    cuda::LtProduct p;
    p.dtype = product.dtype, p.batches = all.batches, p.rows = all.rows, p.cols = all.cols, p.depth = all.depth;
    left_ = place(c.left.at(0), product.left.offset, p.dtype),
    right_ = place(c.right.at(0), product.right.offset, p.dtype);
    p.left = factor(product.left, all.rows, all.depth), p.right = factor(product.right, all.cols, all.depth);
    if (call.bias) p.has_bias = true, bias_ = place(slot_of(*call.bias, c), call.bias->offset, p.dtype);
    if (call.added) {
      p.adds = true, added_ = place(slot_of(*call.added, c), call.added->offset, p.dtype);
      p.added = matrix(call.added->strides, all);
    }
    const Operand& to = all.epilogue.stores.at(0).to;
    if (all.cols > 1 && to.kept[2] != 1) throw std::logic_error("kfusion: cublaslt stores rows of neighbours");
    result_ = place(c.stores.at(0), to.offset, p.dtype);
    p.result = matrix(to.kept, all);
    p.activation = call.activation == BlasActivation::kRelu   ? cuda::LtActivation::kRelu
                   : call.activation == BlasActivation::kGelu ? cuda::LtActivation::kGelu
                                                              : cuda::LtActivation::kNone;
    return p;
  }

  static Placed place(int slot, std::int64_t offset, DType dtype) { return {slot, bytes_of(offset, dtype)}; }

  static int slot_of(const Access& a, const Contracted& c) {
    const auto& loads = c.contraction.epilogue.loads;
    const auto found = std::ranges::find(loads, a.base, &Operand::node);
    return c.loads.at(static_cast<std::size_t>(found - loads.begin()));
  }

  static cuda::LtMatrix factor(const Factor& f, std::int64_t outer, std::int64_t depth) {
    const bool turned = f.depth != 1 || (outer > 1 && f.outer < depth);
    const std::int64_t step = turned ? (depth == 1 ? outer : f.depth) : (outer == 1 ? depth : f.outer);
    return {step, f.batch, turned};
  }

  static cuda::LtMatrix matrix(const Extents& strides, const Contraction& c) {
    return {c.rows > 1 ? strides[1] : c.cols, c.batches > 1 ? strides[0] : c.rows * c.cols, false};
  }

  Placed left_, right_, added_, bias_, result_;
  cuda::LtKernel kernel_;
};

class CublasLt final : public Backend {
 public:
  std::string_view name() const override { return "cublaslt"; }
  bool has(Pattern p, const Device& d) const override {
    return !d.is_cpu && d.compute_capability >= 80 && p == Pattern::kMatmul;
  }

  /// Where there is a GPU, plans are to run here.
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    std::string why;
    const auto call = blas_call(k, why);
    if (!call) return why;
    for (const NodeId n : k.stores)
      if (const Access& to = k.folded.value[at(n)]; !stores_rows(to, call->products))
        return "stores rows of neighbours, from multiples of 16 bytes on";
    if (cuda::device_count() > 0 && !cuda::has_cublaslt())
      return "finds no library cublasLt (pip install nvidia-cublas)";
    return std::nullopt;
  }

  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    const BlasCall call = call_of(plan, group);
    const Contraction& c = call.products;
    const double us = static_cast<double>(c.batches) * 2e6 * static_cast<double>(c.rows) * static_cast<double>(c.cols) *
                      static_cast<double>(c.depth) / peak_flops(device, c.products[0].dtype, true);
    Price p = roofline;
    p.launch_us = device.launch_us;
    p.compute_us = us;
    p = product_price(p, device);
    if (call.activation == BlasActivation::kGelu) p.compute_us *= kGelu;
    if (device.compute_capability == 90)
      p.compute_us *= kBesideOurs, p.launch_us *= kBesideOurs, p.memory_us *= kBesideOurs;
    settle(p);
    return p;
  }

  std::string how(const Plan& plan, const Group& group, const Device&) const override {
    const BlasCall call = call_of(plan, group);
    std::string parts = call.bias ? "a bias" : "";
    const auto add = [&](const char* part) { parts += (parts.empty() ? "" : ", ") + std::string(part); };
    if (call.added) add("a matrix that is added");
    if (call.activation == BlasActivation::kRelu) add("relu");
    if (call.activation == BlasActivation::kGelu) add("gelu by tanh");
    return parts.empty() ? "" : "epilogue of the library: " + parts;
  }

  StepPointer make_step(StepRequest& request) const override {
    if (!request.aligned())  // what the library then takes is slow, or fails when it runs (13.0)
      throw NoSuchKernel("kfusion: cuBLASLt is given no arrays at odd addresses", "cublaslt");
    std::string why;
    const auto call = blas_call(candidate_of(request.plan(), request.group()), why);
    if (!call) throw NoSuchKernel("kfusion: cublaslt " + why, "cublaslt");  // of what lies otherwise than was planned
    return std::make_unique<LtStep>(*call, request.contraction(), request.place().index);
  }

 private:
  /// Time of torch's _addmm_activation, which is this kernel, over the product's: 746 and 751 TFLOP/s for 10^12 and
  /// 10^11 operations, the product alone 771 and 774 (an H100, docs/performance.md).
  static constexpr double kGelu = 1.03;
  /// Our own kernels take 0.97 to 1.02 of its time there, a difference smaller than the error of either price; ours run
  /// unless it is clearly faster.
  static constexpr double kBesideOurs = 1.1;

  /// Whether results are stored as rows that are contiguous and aligned, for example into a slice of a join.
  static bool stores_rows(const Access& to, const Contraction& c) {
    const auto seen = reshaped(to, {c.batches, c.rows, c.cols});
    if (!seen) return false;
    const std::int64_t batch = c.batches > 1 ? seen->strides[0] : c.cols, row = c.rows > 1 ? seen->strides[1] : c.cols;
    return (c.cols == 1 || seen->strides[2] == 1) && row >= c.cols && batch > 0 &&
           are_lines_aligned(seen->offset, batch, row);
  }
};

}  // namespace

const Backend& cublaslt_backend() {
  static const CublasLt backend;
  return backend;
}

}  // namespace kfusion
