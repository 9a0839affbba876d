#include "backends/cuda/blas_call.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "kfusion/graph/match.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

class BlasMatcher {
 public:
  explicit BlasMatcher(const Candidate& k) : k_(k) {}

  std::optional<BlasCall> run(std::string& why) {
    why = refusal();
    return why.empty() ? std::optional(std::move(call_)) : std::nullopt;
  }

  // What a pattern (graph/match.hpp) reads.
  Op op(NodeId n) const { return k_.computes(n) ? node(n).op : Op::input; }
  NodeId argument(NodeId n, std::size_t i) const { return reads(n)[i].base; }

 private:
  const Node& node(NodeId n) const { return k_.graph[n]; }
  const std::vector<Access>& reads(NodeId n) const { return k_.folded.work[at(n)].reads; }
  bool reads_value(NodeId n, NodeId value) const { return std::ranges::count(reads(n), value, &Access::base) > 0; }
  DType dtype() const { return call_.products.products[0].dtype; }

  std::string refusal() {
    if (auto general = why_no_contraction(k_)) return *general;
    call_.products = *products_of(k_);
    if (auto why = refusal_of_product(); !why.empty()) return why;
    NodeId last = call_.products.products[0].node;
    used_.insert(last);
    for (NodeId next = last; (next = step(last)) >= 0;) last = next;
    if (!why_.empty()) return why_;
    for (const NodeId n : k_.nodes)
      if (!used_.contains(n)) return why_beyond(n);
    if (k_.nodes.size() == 1) return "computes what follows a product";  // one alone is the array library's
    if (k_.stores.size() != 1 || k_.stores[0] != last) return "stores the last value of a kernel only";
    return node(last).dtype == dtype() ? "" : "stores what has the dtype of the factors";
  }

  std::string refusal_of_product() const {
    const Contraction& c = call_.products;
    if (c.products.size() != 1) return "computes one product";
    const Product& p = c.products[0];
    if (!is_half(p.dtype) || p.left.dtype != p.dtype || p.right.dtype != p.dtype)
      return "computes products of float16 or bfloat16";
    if (c.batches * c.rows * c.cols * c.depth == 0) return "computes products that have elements";
    if (std::max({c.batches, c.rows, c.cols, c.depth}) > INT32_MAX) return "counts rows and columns below 2^31";
    if (!lines_fit(p.left, c.rows, c.depth) || !lines_fit(p.right, c.cols, c.depth) || c.cols % 8 != 0)
      return "reads and stores rows that begin at multiples of 16 bytes";  // others take its slow kernels
    if (!has_lines(p.left, c.rows, c.depth) || !has_lines(p.right, c.cols, c.depth))
      return "reads factors whose rows or columns are contiguous";
    return {};
  }

  /// There may be only one line, along the depth or across it.
  static bool lines_fit(const Factor& f, std::int64_t outer, std::int64_t depth) {
    const std::int64_t line = f.depth == 1 ? (outer > 1 ? f.outer : 0) : (depth > 1 ? f.depth : 0);
    return are_lines_aligned(f.offset, f.batch, line);
  }

  /// Whether neighbours lie along one of both axes, and lines of them apart along the other one.
  static bool has_lines(const Factor& f, std::int64_t outer, std::int64_t depth) {
    if (f.batch < 0) return false;
    return (f.depth == 1 && (outer == 1 || f.outer >= depth)) || (f.outer == 1 && (depth == 1 || f.depth >= outer));
  }

  std::string why_beyond(NodeId n) const {
    return "computes on a product a bias, a matrix that is added, then relu or gelu by tanh, and no " +
           std::string(kfusion::name(node(n).op)) + " beyond";
  }

  /// The value that the next part of the call makes of `value`; -1 where nothing follows, or nothing that it has.
  NodeId step(NodeId value) {
    std::vector<NodeId> readers;
    for (const NodeId n : k_.nodes)
      if (reads_value(n, value)) readers.push_back(n);
    if (readers.empty()) return -1;
    if (const NodeId gelu = take_gelu(value); gelu >= 0) return gelu;
    const NodeId n = readers[0];
    const bool taken = readers.size() == 1 && (take_cast(n) || take_sum(n, value) || take_relu(n));
    if (!taken) {
      if (why_.empty()) why_ = why_beyond(n);
      return -1;
    }
    used_.insert(n);
    return n;
  }

  bool is_last(NodeId n) const {
    return std::ranges::none_of(k_.nodes, [&](NodeId m) { return reads_value(m, n); });
  }

  /// Values stay in float32 inside, so that a cast that rounds must be the last.
  bool take_cast(NodeId n) const {
    if (node(n).op != Op::cast) return false;
    if (node(n).dtype == DType::kFloat32) return true;
    return node(n).dtype == dtype() && (is_last(n) || !std::get<CastAttributes>(node(n).attributes).rounds);
  }

  bool take_relu(NodeId n) {
    if (node(n).op != Op::relu || call_.activation != BlasActivation::kNone) return false;
    call_.activation = BlasActivation::kRelu;
    return true;
  }

  /// What lies behind casts of the group's own to float32.
  std::optional<Access> uncast(Access a) {
    while (k_.computes(a.base)) {
      const NodeId n = a.base;
      if (node(n).op != Op::cast || node(n).dtype != DType::kFloat32 || !is_identity(reads(n)[0])) return std::nullopt;
      used_.insert(n);
      a.base = reads(n)[0].base;
    }
    return a;
  }

  bool take_sum(NodeId n, NodeId value) {
    if (node(n).op != Op::add || call_.activation != BlasActivation::kNone) return false;
    const bool first = reads(n)[0].base == value;
    if (first && reads(n)[1].base == value) return false;
    const auto other = uncast(reads(n)[first ? 1 : 0]);
    if (!other || is_free(node(other->base)) || node(other->base).dtype != dtype()) return false;
    const Contraction& c = call_.products;
    const auto seen = reshaped(*other, {c.batches, c.rows, c.cols});
    if (!seen || seen->has_positions() || (c.cols > 1 && seen->strides[2] != 1)) return false;
    const std::int64_t batch = c.batches > 1 ? seen->strides[0] : 0, row = c.rows > 1 ? seen->strides[1] : 0;
    if (!are_lines_aligned(seen->offset, batch, row)) return false;
    if (batch == 0 && row == 0 && !call_.bias) {
      call_.bias = *seen;
      return true;
    }
    if (call_.added || batch < 0 || (c.rows > 1 && row < c.cols)) return false;
    call_.added = *seen;
    return true;
  }

  /// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) of `x`, as the composite computes it; -1 where it is not there.
  NodeId take_gelu(NodeId x) {
    if (call_.activation != BlasActivation::kNone) return -1;
    NodeId half = -1, more = -1, tanh = -1, scaled = -1, inner = -1, small = -1, cube = -1, square = -1;
    const auto number = [&](double value) {
      return m::such([this, value](NodeId n) {
        const auto c = m::GraphReader{k_.graph}.number(n);
        return c && is_float(node(n).dtype) && std::abs(*c - value) <= 1e-6 * std::abs(value);
      });
    };
    const auto is_x = m::is(x);
    const auto cubed = m::bind(cube, m::multiply(m::bind(square, m::multiply(is_x, is_x)), is_x));
    const auto sum = m::bind(inner, m::add(is_x, m::bind(small, m::multiply(cubed, number(0.044715)))));
    const auto curve = m::bind(tanh, m::tanh(m::bind(scaled, m::multiply(sum, number(0.7978845608028654)))));
    const auto gelu =
        m::multiply(m::bind(half, m::multiply(is_x, number(0.5))), m::bind(more, m::add(curve, number(1))));
    for (const NodeId n : k_.nodes) {
      if (!gelu(*this, n)) continue;
      const NodeId nodes[] = {half, more, tanh, scaled, inner, small, cube, square};
      if (is_read_elsewhere(x, nodes)) continue;
      used_.insert(std::begin(nodes), std::end(nodes));
      used_.insert(n);
      call_.activation = BlasActivation::kGelu;
      return n;
    }
    return -1;
  }

  bool is_read_elsewhere(NodeId x, std::span<const NodeId> nodes) const {
    return std::ranges::any_of(k_.nodes,
                               [&](NodeId n) { return reads_value(n, x) && std::ranges::count(nodes, n) == 0; });
  }

  const Candidate& k_;
  BlasCall call_;
  std::set<NodeId> used_;
  std::string why_;
};

}  // namespace

std::optional<BlasCall> blas_call(const Candidate& kernel, std::string& why) { return BlasMatcher(kernel).run(why); }

}  // namespace kfusion
