// Products on the CPU with what follows them: blocks by a BLAS of the process, the rest by loops while they are in the
// cache.
#include <algorithm>

#include "cpu/products/attention.hpp"
#include "cpu/products/product.hpp"
#include "kfusion/graph/constant.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class ProductStep final : public ExecutableStep {
 public:
  explicit ProductStep(Contracted given)
      : kernel_(std::move(given.contraction)),
        left_(std::move(given.left)),
        right_(std::move(given.right)),
        loads_(std::move(given.loads)),
        stores_(std::move(given.stores)) {
    for (int& slot : loads_) slot = std::max(slot, 0);  // of a product's elements: any
  }

  void run(const Frame& f) const override {
    Addresses left(left_, f.slots), right(right_, f.slots), loads(loads_, f.slots), stores(stores_, f.slots);
    kernel_.run(left.data(), right.data(), loads.data(), stores.data(), f.parameters);
  }

 private:
  cpu::ProductKernel kernel_;
  std::vector<int> left_, right_, loads_, stores_;
};

class AttentionStep final : public ExecutableStep {
 public:
  explicit AttentionStep(Attended given)
      : kernel_(std::move(given.attention)),
        queries_(given.scores.left.at(0)),
        keys_(given.scores.right.at(0)),
        values_(given.output.right.at(0)),
        score_loads_(std::move(given.scores.loads)),
        output_loads_(std::move(given.output.loads)),
        stores_(std::move(given.output.stores)) {
    for (int& slot : score_loads_) slot = std::max(slot, 0);
    for (int& slot : output_loads_) slot = std::max(slot, 0);
  }

  void run(const Frame& f) const override {
    Addresses scores(score_loads_, f.slots), output(output_loads_, f.slots), stores(stores_, f.slots);
    kernel_.run({f.slots[queries_], f.slots[keys_], f.slots[values_], scores.data(), output.data(), stores.data()},
                f.parameters);
  }

 private:
  cpu::AttentionKernel kernel_;
  int queries_, keys_, values_;
  std::vector<int> score_loads_, output_loads_, stores_;
};

/// Whether the products and their factors all have this dtype.
bool is_of(const Candidate& k, DType dtype) {
  return std::ranges::all_of(k.nodes, [&](NodeId n) {
    const auto is_other = [&](const Access& a) { return k.graph[a.base].dtype != dtype; };
    return k.graph[n].op != Op::matmul ||
           (k.graph[n].dtype == dtype && std::ranges::none_of(k.folded.work[at(n)].reads, is_other));
  });
}

/// Whether they are floats of one type; half types are multiplied as panels of float32.
bool is_of_one_type(const Candidate& k) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  return std::ranges::any_of(kTypes, [&](DType t) { return is_of(k, t); });
}

/// Array libraries have products of floats, and not all of them of half types.
bool is_better_alone(const Candidate& k) { return k.nodes.size() == 1 && !is_half(k.graph[k.nodes[0]].dtype); }

/// What products of half types take, where the roofline has them as the library's.
double more_us(const Contraction& c, const Device& device) {
  const DType type = c.products[0].dtype;
  if (!is_half(type)) return 0;
  // 4096 x 1024 by 1024 x 4096 with a gelu, bfloat16, take 1.0 of what they take in float32 on two cores, 512 x 4096 by
  // 4096 x 4096 1.03, 16 rows 1.1.
  constexpr double kFloat32Factor = 1.05;
  const double flops = c.flops() * static_cast<double>(c.products.size());
  return flops * 1e6 *
         (kFloat32Factor / peak_flops(device, DType::kFloat32, true) - 1 / peak_flops(device, type, true));
}

bool has_product_without_elements(const Candidate& k) {
  return std::ranges::any_of(k.nodes, [&](NodeId n) { return k.graph[n].op == Op::matmul && k.graph[n].size() == 0; });
}

/// Whether a value is an index, or made of indices alone, such as a mask in an array of its own.
bool is_of_positions(const Graph& g, NodeId id) {
  const Node& n = g[id];
  if (n.op == Op::iota) return true;
  const auto is_known = [&](NodeId a) { return kind(g[a].op) == OpKind::kSource && g[a].op != Op::input; };
  const bool is_made = is_elementwise(n) || kind(n.op) == OpKind::kView;
  return is_made && std::ranges::any_of(n.arguments, [&](NodeId a) { return is_of_positions(g, a); }) &&
         std::ranges::all_of(n.arguments, [&](NodeId a) { return is_known(a) || is_of_positions(g, a); });
}

/// Whether `where` puts -inf in the place of scores by positions, so that blocks of keys are left out.
bool hides_keys(const Candidate& k) {
  bool positions = false, masks = false;
  for (const NodeId n : k.nodes) {
    const auto& reads = k.folded.work[at(n)].reads;
    const auto is_hidden = [&](std::size_t i) { return is_minus_infinity(k.graph[reads[i].base]); };
    const auto is_score = [&](std::size_t i) { return !is_constant(k.graph[reads[i].base]); };
    positions |= std::ranges::any_of(reads, [&](const Access& a) { return k.graph[a.base].op == Op::iota; });
    masks |= k.graph[n].op == Op::where && ((is_hidden(1) && is_score(2)) || (is_hidden(2) && is_score(1)));
  }
  return positions && masks;
}

class Products final : public Backend {
 public:
  std::string_view name() const override { return "cpu_products"; }
  bool has(Pattern p, const Device& d) const override {
    return d.is_cpu && (p == Pattern::kMatmul || p == Pattern::kContractionReduction || p == Pattern::kAttention);
  }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    if (is_better_alone(k)) return "computes nothing that is a product alone";
    if (!is_of_one_type(k)) return "computes products of floats of one type";
    if (const auto why = k.pattern == Pattern::kAttention
                             ? why_no_attention(k)
                             : why_no_contraction(k, {.positions = true, .batches = BatchAxes::kAny}))
      return why;
    if (has_product_without_elements(k)) return "computes no product without elements";
    if (!cpu::Blas::loaded()) return "finds no OpenBLAS in this process";
    return std::nullopt;
  }

  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const override {
    Price p = roofline;
    if (group.pattern == Pattern::kAttention) {
      const bool has_library_alternative = !plan.graph.alternatives.empty();
      if (const auto us = attention_us(candidate_of(plan, group), roofline, device, has_library_alternative))
        p.compute_us = *us;
    } else if (const auto c = products_of(candidate_of(plan, group), BatchAxes::kAny)) {
      // Threads that each have blocks of their own wait for each other once: 4096 x 1024 by 1024 x 4096 takes two of
      // them 0.95 to 1 of what OpenBLAS's threads take together, with what follows it. Few rows make few blocks.
      p.compute_us += more_us(*c, device);
      constexpr double kLibraryFactor = 0.97;
      constexpr std::int64_t kFewRows = 128;
      if (c->batches * c->rows >= kFewRows) p.compute_us *= kLibraryFactor;
    }
    settle(p);
    return p;
  }

  std::string how(const Plan& plan, const Group& group, const Device&) const override {
    const auto blocks = [](std::int64_t rows, std::int64_t cols) {
      return "blocks of " + std::to_string(rows) + " x " + std::to_string(cols);
    };
    if (group.pattern == Pattern::kAttention) {
      const Candidate k = candidate_of(plan, group);
      const auto a = attention_of(k);
      if (!a) return {};
      const cpu::Block b = cpu::attention_block(a->scores);
      return blocks(b.rows, b.cols) + (hides_keys(k) ? ", but for keys that positions hide" : "");
    }
    const auto c = products_of(candidate_of(plan, group), BatchAxes::kAny);
    if (!c) return {};
    const cpu::Block b = cpu::cut_of(*c).block;
    return blocks(b.batches * b.rows, b.cols);
  }

  StepPointer make_step(StepRequest& request) const override {
    if (request.group().pattern == Pattern::kAttention) return std::make_unique<AttentionStep>(request.attention());
    return std::make_unique<ProductStep>(request.contraction(BatchAxes::kAny));
  }

 private:
  /// 8 x 16 heads of 1024 queries and keys of 64 numbers take 0.92 of torch's time, which is priced as that of its
  /// products. A mask of positions hides half of the scores of as many queries as keys, but for the blocks on the
  /// diagonal: 1 x 12 x 1024 x 64 takes 0.64 of the time without one, 1 x 4 x 2048 x 128 0.59. Where it is made in a
  /// kernel of its own, only a function of the library's may know it: torch's takes 0.24 to 0.7 of our time for 128 to
  /// 2048 queries.
  static std::optional<double> attention_us(const Candidate& k, const Price& roofline, const Device& device,
                                            bool has_library_alternative) {
    constexpr double kLibraryFactor = 0.92, kPositionsFactor = 2.5;
    const auto a = attention_of(k);
    const auto is_position = [&](const Access& read) { return is_of_positions(k.graph, read.base); };
    const auto knows_positions = [&](NodeId n) { return std::ranges::any_of(k.folded.work[at(n)].reads, is_position); };
    const bool has_positions = std::ranges::any_of(k.nodes, knows_positions);
    const bool hides = hides_keys(k);
    if (!a || (has_positions && !hides && !has_library_alternative)) return std::nullopt;
    const DType type = compute_dtype(a->scores.products[0].dtype);
    const double scores = static_cast<double>(a->scores.batches) * static_cast<double>(a->scores.rows * a->scores.cols);
    const std::int64_t hidden = std::max<std::int64_t>(std::min(a->scores.rows, a->scores.cols) - cpu::kKeyStep, 0);
    const double seen = hides ? 1 - 0.5 * static_cast<double>(hidden) / static_cast<double>(a->scores.cols) : 1;
    return (has_positions && !hides ? kPositionsFactor : kLibraryFactor * seen) *
               (a->scores.flops() + a->output.flops()) / peak_flops(device, type, true) * 1e6 +
           beyond_softmax_us(roofline, type, scores, device);
  }
};

}  // namespace

const Backend& cpu_product_backend() {
  static const Products backend;
  return backend;
}

}  // namespace kfusion
