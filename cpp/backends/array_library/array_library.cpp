#include <algorithm>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"
#include "runtime/library_functions.hpp"

namespace kfusion {
namespace {

/// The library of the plan's caller, who may have none.
LibraryFunctions& library_of(const Frame& f) {
  if (!f.library) throw ValueError("kfusion: this plan has kernels of an array library, and runs without one");
  return *f.library;
}

using Arguments = std::vector<Seen>;

std::vector<LibraryArgument> placed(const Arguments& arguments, const Frame& f) {
  std::vector<LibraryArgument> all;
  all.reserve(arguments.size());
  for (const Seen& s : arguments) all.push_back({s.placed(f), s.whole ? s.slot : -1});
  return all;
}

void take_made(const LibraryResult& r, const Frame& f) {
  if (r.kept || !f.slots[r.slot]) f.slots[r.slot] = r.view.data;
}

/// Whether the library may make a result: not a part of one.
bool makes_whole(const Seen& result, int slot) { return result.slot == slot && result.whole && result.offset == 0; }

class LibraryStep final : public ExecutableStep {
 public:
  explicit LibraryStep(StepRequest& request)
      : node_(request.plan().graph[request.group().nodes.at(0)]),
        place_(request.place()),
        result_(request.value(request.group().nodes[0])) {
    for (const NodeId a : node_.arguments) arguments_.push_back(request.value(a));
  }

  void run(const Frame& f) const override {
    LibraryResult result{result_.placed(f), result_.slot, 0, result_.kept};
    library_of(f).compute(node_, placed(arguments_, f), result, place_, f.stream);
    take_made(result, f);
  }
  bool runs_in_library() const override { return true; }
  bool makes(int slot) const override { return makes_whole(result_, slot); }

 private:
  Node node_;
  Place place_;
  Arguments arguments_;
  Seen result_;
};

/// A call of any function, with all its results.
class LibraryCallStep final : public ExecutableStep {
 public:
  explicit LibraryCallStep(StepRequest& request) : place_(request.place()) {
    const Graph& g = request.plan().graph;
    const Group& group = request.group();
    const NodeId call =
        g[group.nodes.front()].op == Op::library_call ? group.nodes.front() : g[group.nodes.front()].arguments[0];
    node_ = g[call];
    for (const NodeId a : node_.arguments) arguments_.push_back(request.value(a));
    for (const NodeId n : group.stores) {
      const auto* further = std::get_if<LibraryResultAttributes>(&g[n].attributes);
      results_.push_back({request.value(n), further ? further->index : 0});
    }
  }

  void run(const Frame& f) const override {
    std::vector<LibraryResult> results;
    for (const auto& [seen, index] : results_) results.push_back({seen.placed(f), seen.slot, index, seen.kept});
    library_of(f).call(node_, placed(arguments_, f), results, place_, f.stream);
    for (const LibraryResult& r : results) take_made(r, f);
  }
  bool runs_in_library() const override { return true; }
  bool makes(int slot) const override {
    return std::ranges::any_of(results_, [&](const Result& r) { return makes_whole(r.seen, slot); });
  }

 private:
  struct Result {
    Seen seen;
    int index;
  };
  Node node_;
  Place place_;
  Arguments arguments_;
  std::vector<Result> results_;
};

/// Products and convolutions, one at a time, and calls of any function.
class ByArrayLibrary final : public Backend {
 public:
  std::string_view name() const override { return "array_library"; }
  bool has(Pattern p, const Device&) const override {
    return p == Pattern::kMatmul || p == Pattern::kConv2d || p == Pattern::kLibraryCall;
  }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    if (k.nodes.size() == 1 || k.pattern == Pattern::kLibraryCall) return std::nullopt;
    return "computes a " + std::string(kfusion::name(k.pattern)) + " alone";
  }
  /// NumPy has no product of half types: the reference interpreter takes two cores 5 ms for one of 256 x 256 matrices.
  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    constexpr double kFlopsOfReference = 7e9;
    const Node& n = plan.graph[group.nodes[0]];
    if (n.op == Op::library_call) return price_of_call(plan.graph, n, roofline, device);
    if (n.op != Op::matmul || !is_half(n.dtype)) return roofline;
    if (!device.is_cpu) return price_on_gpu(n, plan.folded.work[at(group.nodes[0])].reads, roofline, device);
    if (n.library == Library::kTorch) return roofline;
    const double depth = static_cast<double>(group.loads[0].access.shape.back());
    Price p = roofline;
    p.compute_us = 2 * depth * static_cast<double>(n.size()) / kFlopsOfReference * 1e6;
    settle(p);
    return p;
  }
  /// Calls always keep their results. Keeping a product saves making the library's arrays around our memory, or a copy;
  /// on the CPU our memory is in pages that exist already.
  bool keeps(const Node& n) const override {
    return kind(n.op) == OpKind::kLibrary || !n.place.on_host() || (n.op == Op::conv2d && n.library == Library::kTorch);
  }
  StepPointer make_step(StepRequest& request) const override {
    if (request.group().pattern == Pattern::kLibraryCall) return std::make_unique<LibraryCallStep>(request);
    return std::make_unique<LibraryStep>(request);
  }

 private:
  static Price price_of_call(const Graph& g, const Node& n, const Price& roofline, const Device& device) {
    const auto& call = std::get<LibraryCallAttributes>(n.attributes);
    Price p = roofline;
    if (call.flops > 0) p.compute_us *= times_of_products(call.function, g[n.arguments[0]].dtype, device);
    settle(p);
    return p;
  }

  /// The price of a product of half types: 8184 x 1024 x 50257 takes 6.0 ms with unaligned factors and 1.05 ms with
  /// aligned ones; transposing 8192 x 50257 back takes 1.0 ms, 2.6 times a copy (bfloat16, cuBLAS 13, an H200).
  static Price price_on_gpu(const Node& n, const std::vector<Access>& factors, const Price& roofline,
                            const Device& device) {
    constexpr double kUnaligned = 5.7, kTransposed = 2.6;
    Price p = roofline;
    const std::int64_t columns = n.shape.back(), rows = n.size() / std::max<std::int64_t>(columns, 1);
    const auto is_unaligned = [&](const Access& a) {  // rows or columns, whichever lie one after the other
      const std::size_t last = a.shape.size() - 1;
      const bool in_rows = a.strides[last] == 1 || a.shape[last] == 1;
      return last > 0 && !has_aligned_rows(in_rows ? a.strides[last - 1] : a.strides[last], n.dtype);
    };
    if (std::ranges::any_of(factors, is_unaligned))
      p.compute_us *= kUnaligned;
    else if (rows > 1 && !has_aligned_rows(columns, n.dtype))
      p.compute_us = std::min(
          kUnaligned * p.compute_us,
          p.compute_us + kTransposed * 2 * static_cast<double>(n.nbytes()) / device.bandwidth * 1e6 + device.launch_us);
    settle(p);
    return p;
  }
};

}  // namespace

const Backend& array_library_backend() {
  static const ByArrayLibrary backend;
  return backend;
}

}  // namespace kfusion
