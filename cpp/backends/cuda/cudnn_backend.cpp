// Convolutions with what follows them, in one kernel of cuDNN's.
#include <algorithm>
#include <cmath>
#include <future>
#include <system_error>

#include "backends/backends.hpp"
#include "backends/cuda/aligned_factors.hpp"
#include "backends/cuda/cudnn_recipe.hpp"
#include "host/cuda.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"
#include "runtime/executable.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kAlignment = 16;

/// Extents of 1 have any stride.
bool lies_so(const Extents& shape, const Extents& strides, const Extents& wanted) {
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] > 1 && strides[i] != wanted[i]) return false;
  return true;
}

/// A kernel that copies an array of four axes to one with other strides.
Executable copying(const Extents& shape, DType dtype, Place place, const Extents& from, const Extents& to) {
  GraphBuilder b;
  const NodeId x = b.input("x", shape, dtype, Library::kTorch, place, false, from);
  b.set_outputs({{"result", b.map(Op::positive, {x})}});
  Device device;  // for the one kernel that there is
  device.bandwidth = device.cache_bandwidth = 1;
  PlanOptions options;
  options.executors = {executor_named("cuda")};
  return Executable(make_plan(b.graph(), device, options), device, place, false, {to});
}

class ConvolutionStep final : public ExecutableStep {
 public:
  ConvolutionStep(ConvolutionRecipe r, StepRequest& request) : place_(request.place()), recipe_(std::move(r)) {
    const auto may_be_odd = [&](std::int64_t offset) {
      return !request.aligned() || offset % static_cast<std::int64_t>(kAlignment) != 0;
    };
    for (const RecipeData& d : recipe_.reads) {
      Read read{d, d.is_number ? -1 : request.value(d.access.base).slot, 0, 0, {}};
      const cudnn::Tensor& t = tensor(d.tensor);
      read.bytes = static_cast<std::size_t>(product(t.extents)) * item_bytes(t.dtype);
      if (d.is_image && !lies_so(t.extents, d.access.strides, t.strides))
        read.copy.emplace(copying(t.extents, t.dtype, place_, d.access.strides, t.strides));
      if (read.copy || (!d.is_number && may_be_odd(d.access.offset * static_cast<std::int64_t>(item_bytes(d.dtype)))))
        read.copy_at = reserve(read.bytes);
      reads_.push_back(std::move(read));
    }
    const NodeId stored = request.group().stores.at(0);
    slot_ = request.value(stored).slot;
    const cudnn::Tensor& result = tensor(recipe_.result);
    const Access to = request.stored(stored);
    offset_ = to.offset * static_cast<std::int64_t>(item_bytes(result.dtype));
    const Extents strides = strides_of(to, result.extents);
    result_bytes_ = static_cast<std::size_t>(product(result.extents)) * item_bytes(result.dtype);
    if (!lies_so(result.extents, strides, result.strides))
      turn_.emplace(copying(result.extents, result.dtype, place_, result.strides, strides));
    if (turn_ || may_be_odd(offset_)) result_at_ = reserve(result_bytes_);
    start();
  }

  void finish() override {
    kernel_ = making_.get();
    kernel_at_ = bytes_;
    bytes_ += kernel_->workspace_bytes();
  }

  std::size_t workspace_bytes() const override { return bytes_; }

  void run(const Frame& f) const override {
    Room<const void*, 16> data(recipe_.reads.size() + 1);
    std::size_t next = 0;
    for (const Read& r : reads_) {
      if (r.data.tensor > recipe_.result && next == at_) ++next;
      data[next++] = r.data.is_number ? static_cast<const void*>(&r.data.number) : given(r, f);
    }
    std::byte* const wanted = f.slots[slot_] + offset_;
    const bool direct = !turn_ && is_aligned(wanted);
    std::byte* const result = direct ? wanted : f.workspace + result_at_;
    data[at_] = result;
    kernel_->run(data.data(), f.workspace + kernel_at_, f.stream);
    if (turn_)
      copy(*turn_, result, wanted, f);
    else if (!direct)
      cuda::copy(wanted, result, result_bytes_, f.device, f.stream);
  }

 private:
  struct Read {
    RecipeData data;
    int slot;
    std::size_t bytes = 0, copy_at = 0;
    std::optional<Executable> copy;  ///< to channels that lie innermost
  };

  const cudnn::Tensor& tensor(int i) const { return recipe_.recipe.tensors[at(i)]; }
  static bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kAlignment == 0; }

  std::size_t reserve(std::size_t bytes) {
    const std::size_t begin = bytes_;
    bytes_ += workspace_part(bytes);
    return begin;
  }

  /// Along the result's axes: the access is along those of more than one element.
  static Extents strides_of(const Access& to, const Extents& extents) {
    Extents strides(extents.size(), 0), along;
    for (std::size_t i = 0; i < to.shape.size(); ++i)
      if (to.shape[i] != 1) along.push_back(to.strides[i]);
    std::size_t next = 0;
    for (std::size_t i = 0; i < extents.size(); ++i)
      if (extents[i] != 1) strides[i] = along[next++];
    return strides;
  }

  void start() {
    at_ = static_cast<std::size_t>(
        std::ranges::count_if(recipe_.reads, [&](const RecipeData& d) { return d.tensor < recipe_.result; }));
    const auto make = [recipe = recipe_.recipe, device = place_.index] { return cudnn::make(recipe, device); };
    try {
      making_ = std::async(std::launch::async, make);
    } catch (const std::system_error&) {  // no thread is to be had
      making_ = std::async(std::launch::deferred, make);
    }
  }

  void copy(const Executable& kernel, const std::byte* from, std::byte* to, const Frame& f) const {
    kernel.run({&from, &to, f.parameters, f.stream, nullptr});
  }

  /// Where an array lies as cuDNN takes it.
  const std::byte* given(const Read& r, const Frame& f) const {
    const std::byte* array =
        f.slots[r.slot] + r.data.access.offset * static_cast<std::int64_t>(item_bytes(r.data.dtype));
    if (!r.copy && is_aligned(array)) return array;
    std::byte* const to = f.workspace + r.copy_at;
    if (r.copy)
      copy(*r.copy, array, to, f);
    else
      cuda::copy(to, array, r.bytes, f.device, f.stream);
    return to;
  }

  Place place_;
  ConvolutionRecipe recipe_;
  std::vector<Read> reads_;
  int slot_ = 0;
  std::int64_t offset_ = 0;                                                   ///< of the result, in bytes
  std::size_t at_ = 0;                                                        ///< its place among the data
  std::size_t result_bytes_ = 0, result_at_ = 0, kernel_at_ = 0, bytes_ = 0;  ///< in the workspace
  std::optional<Executable> turn_;                                            ///< of the result
  std::future<std::shared_ptr<const cudnn::Plan>> making_;
  std::shared_ptr<const cudnn::Plan> kernel_;
};

class Cudnn final : public Backend {
 public:
  std::string_view name() const override { return "cudnn"; }
  bool has(Pattern p, const Device& d) const override { return p == Pattern::kConv2d && d.compute_capability >= 80; }
  bool lays_channels_last() const override { return true; }

  std::optional<std::string> refusal(const Candidate& k, const Device& device) const override {
    if (k.nodes.size() == 1) return "computes nothing that is a convolution alone";
    std::string why;
    const auto r = convolution_recipe(k, why);
    if (!r) return why;
    if (cuda::device_count() > 0 && !cudnn::is_there()) return "finds no cuDNN 9 in this process";
    if (cudnn::is_unsupported(r->recipe, device.compute_capability))
      return "has no kernel for this convolution and what follows it";
    return std::nullopt;
  }

  /// A kernel of runtime fusion takes 1.09 to 1.21 of the time of the library's convolution alone (H100, cuDNN 9.19: 3
  /// x 3 on 56 x 56 images 335 of 304 us, 1 x 1 148 of 122), whose memory it reads and writes at 0.7 of the copy's
  /// rate.
  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    constexpr double kLibraryEfficiency = 0.91, kCopyEfficiency = 0.7;
    Price p = roofline;
    p.compute_us /= kLibraryEfficiency;
    p.memory_us /= kCopyEfficiency;
    std::string why;
    if (const auto r = convolution_recipe(candidate_of(plan, group), why)) {
      for (std::size_t i = 2; i < r->reads.size(); ++i) {  // the library turns the image and the weight, too
        const RecipeData& d = r->reads[i];
        if (!d.is_image || plan.graph[d.access.base].op != Op::input) continue;
        if (lies_so(d.access.shape, d.access.strides, channels_last(d.access.shape))) continue;
        p.launch_us += device.launch_us;
        p.memory_us += 2e6 * static_cast<double>(product(d.access.shape)) * static_cast<double>(item_bytes(d.dtype)) /
                       device.bandwidth;
      }
    }
    settle(p);
    return p;
  }

  StepPointer make_step(StepRequest& request) const override {
    std::string why;
    auto r = convolution_recipe(candidate_of(request.plan(), request.group()), why);
    if (!r) throw NoSuchKernel("kfusion: cudnn " + why, "cudnn");  // of what lies otherwise than was planned
    return std::make_unique<ConvolutionStep>(std::move(*r), request);
  }
};

}  // namespace

const Backend& cudnn_backend() {
  static const Cudnn backend;
  return backend;
}

}  // namespace kfusion
