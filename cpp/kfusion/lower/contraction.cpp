#include "kfusion/lower/contraction.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "kfusion/lower/kernel_steps.hpp"
#include "kfusion/lower/schedule.hpp"
#include "kfusion/lower/spans.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"
#include "kfusion/plan/views/picks.hpp"

namespace kfusion {
namespace {

/// The axes of a group's products.
struct Shape {
  Extents batch_axes = {1};
  std::int64_t rows = 1, cols = 1;

  std::int64_t batches() const { return product(batch_axes); }
  std::int64_t size() const { return batches() * rows * cols; }
  Extents extents() const { return with({rows, cols}); }
  /// The batches' axes, then these.
  Extents with(const Extents& more) const {
    Extents all = batch_axes;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The place of the rows among the extents; that of the columns is the next one.
  std::size_t row_axis() const { return batch_axes.size(); }

  /// The axes of more than one element, as those of a kernel.
  Extents domain() const { return without_ones(extents()); }
  Axes col_axes() const { return cols > 1 ? axis_bit(domain().size() - 1) : 0; }
  Axes row_axes() const { return rows > 1 ? axis_bit(domain().size() - (cols > 1 ? 2 : 1)) : 0; }
};

/// Over which axis of the products an epilogue reduces, among those of their domain.
Axes reduced_axes(const Shape& shape, Reduces reduces) {
  return reduces == Reduces::kRows ? shape.row_axes() : reduces == Reduces::kCols ? shape.col_axes() : 0;
}

/// `a` along the axes of a product, of which those of one element have stride 0.
std::optional<Access> seen_along(const Access& a, const Extents& extents) {
  auto seen = reshaped(a, extents);
  for (std::size_t i = 0; seen && i < extents.size(); ++i)
    if (extents[i] == 1) seen->strides[i] = 0;
  return seen;
}

const std::vector<Access>& reads_of(const FoldedGraph& folded, NodeId n) { return folded.work[at(n)].reads; }

/// A factor's leading axes as the product has them.
Access batch_access(const Access& a, const Extents& product) {
  Access lead = a;
  lead.shape = Extents(a.shape.begin(), a.shape.end() - 2);
  lead.strides = Extents(a.strides.begin(), a.strides.end() - 2);
  return broadcast_to(lead, Extents(product.begin(), product.end() - 2));
}

/// `a` is the left factor (its rows are outer) or the right one. Nothing where strides do not express it.
std::optional<Factor> factor_of(const Graph& g, const Access& a, const Extents& product, const Shape& shape,
                                bool left) {
  const Access lead = batch_access(a, product);
  const auto last = a.strides.size() - 1;
  const std::int64_t outer = a.strides[left ? last - 1 : last], depth = a.strides[left ? last : last - 1];
  Factor f{a.base, g[a.base].dtype, a.offset, 0, outer, depth, Extents(shape.batch_axes.size(), 0)};
  if (kfusion::product(lead.shape) == 0) return f;
  if (shape.batches() == 1 && left) {  // leading axes may be part of the rows
    Access rows = lead;
    rows.shape.push_back(a.shape[last - 1]), rows.strides.push_back(outer);
    const auto seen = reshaped(rows, {shape.rows});
    if (!seen) return std::nullopt;
    f.outer = seen->strides[0];
    return f;
  }
  const bool is_one = shape.batches() == 1;  // whose right factor leads along no axis
  const auto seen = seen_along(lead, is_one ? Extents{kfusion::product(lead.shape)} : shape.batch_axes);
  if (!seen) return std::nullopt;
  if (is_one) return seen->strides[0] != 0 ? std::nullopt : std::optional(f);
  f.batch_strides = seen->strides, f.batch = f.batch_strides.back();
  return f;
}

/// The ways to see a product's axes: with leading axes as more rows, where the right factor is the same for all; as one
/// axis; as they are.
std::vector<Shape> shapes_of(const Extents& product, BatchAxes axes) {
  const std::int64_t rows = product[product.size() - 2], cols = product.back();
  const Extents leading(product.begin(), product.end() - 2);
  const std::int64_t batches = kfusion::product(leading);
  if (axes == BatchAxes::kLeading) return {{leading.empty() ? Extents{1} : leading, rows, cols}};
  std::vector<Shape> shapes = {Shape{{1}, batches * rows, cols}, Shape{{batches}, rows, cols}};
  if (axes == BatchAxes::kAny && leading.size() > 1) shapes.push_back({leading, rows, cols});
  return shapes;
}

bool is_product(const Node& n) { return n.op == Op::matmul; }

/// Judges the nodes of a kernel one by one, with the product's axes seen in one way.
class Judge {
 public:
  Judge(const Candidate& k, const Shape& shape) : k_(k), shape_(shape) {}

  std::optional<std::string> run() {
    if (shape_.size() == 0) return "computes products that have elements";
    for (const NodeId n : k_.nodes)
      if (const Work& w = k_.folded.work[at(n)]; w.kind == WorkKind::kReduce)
        if (auto why = refusal_of_reduction(n, w)) return why;
    for (const NodeId n : k_.nodes)
      if (auto why = refusal_of_kind(n)) return why;
    kept_ = all_ & ~reduced_axes(shape_, reduces_);
    auto spans = spans_in(k_, domain_, all_ & ~kept_);
    if (!spans) return "reads what it computes along the product's axes, as it is computed";
    spans_ = std::move(*spans);
    for (const NodeId n : k_.nodes)
      if (auto why = refusal(n)) return why;
    for (const NodeId n : k_.stores)
      if (auto why = refusal_of_store(n)) return why;
    if (count_passes(k_.graph, k_.folded, k_.nodes, k_.stores, shape_.extents()) > 1)
      return "has each element of a product at hand once";
    return std::nullopt;
  }

  Reduces reduces() const { return reduces_; }
  Spans spans() && { return std::move(spans_); }

 private:
  using Why = std::optional<std::string>;

  const Node& node(NodeId n) const { return k_.graph[n]; }

  Why refusal_of_kind(NodeId n) {
    if (is_product(node(n))) return refusal_of_product(n);
    const WorkKind kind = k_.folded.work[at(n)].kind;
    if (kind == WorkKind::kPointwise || kind == WorkKind::kReduce || kind == WorkKind::kPartial) return std::nullopt;
    return "runs no " + std::string(name(node(n).op)) + " with a product";
  }

  Why refusal(NodeId n) const {
    const Work& w = k_.folded.work[at(n)];
    if (w.kind == WorkKind::kPartial) return refusal_of_sums(n, w);
    if (kind(node(n).op) == OpKind::kGather) return refusal_of_gather(n, w);
    if (w.kind != WorkKind::kPointwise) return std::nullopt;
    const Axes span = spans_.at(n), cols = shape_.col_axes(), known[] = {all_, kept_, all_ & ~cols, cols, 0};
    if (std::ranges::find(known, span) == std::end(known))
      return "computes a value of another shape than the product's";
    return refusal_of_reads(w, span);
  }

  /// One element of each row of what is computed here, or one of an array for each row.
  Why refusal_of_gather(NodeId n, const Work& w) const {
    const Access& from = w.reads[0];
    const bool is_pick = k_.computes(from.base) && picks(from, domain_, all_ & ~kept_);
    if (kept_ == all_ || (k_.computes(from.base) && !is_pick))
      return "runs no " + std::string(name(node(n).op)) + " but of one element for each row that it reduces";
    Access of_rows = from;
    of_rows.positions = Access::kNoPositions, of_rows.step = 0;
    const bool goes_by = is_vector_along(from, reduces_ == Reduces::kRows ? shape_.rows : shape_.cols);
    if (!is_pick && !goes_by && !lies_along(of_rows, kept_)) return kSeveralSteps;
    return lies_along(w.reads[1], kept_) ? std::nullopt : Why(kSeveralSteps);
  }

  Why refusal_of_product(NodeId n) {
    const auto& reads = reads_of(k_.folded, n);
    const auto left = factor_of(k_.graph, reads[0], node(n).shape, shape_, true);
    const auto right = factor_of(k_.graph, reads[1], node(n).shape, shape_, false);
    if (!left || !right) return "reads a factor whose leading axes are no single axis";
    if (k_.computes(reads[0].base) || k_.computes(reads[1].base)) return "computes no factor of its product";
    if (first_ >= 0 && node(first_).shape != node(n).shape) return "computes products of one shape only";
    if (first_ >= 0 && reads_of(k_.folded, first_)[0] != reads[0]) return "computes products of one left factor only";
    if (first_ < 0) first_ = n;
    return std::nullopt;
  }

  Why refusal_of_reduction(NodeId n, const Work& w) {
    if (product(w.shape) != shape_.size()) return "reduces the product's elements only";
    if (auto why = refusal_of_reads(w, all_)) return why;
    const Reduces along = reduced_axis(n, w);
    if (along == Reduces::kNothing || (reduces_ != Reduces::kNothing && reduces_ != along))
      return "reduces along the rows or the columns of a product";
    reduces_ = along;
    return std::nullopt;
  }

  /// Sums of columns are of elements as they are stored.
  Why refusal_of_sums(NodeId n, const Work& w) const {
    const Access& of = w.reads[0];
    const bool stored = k_.computes(of.base) && std::ranges::find(k_.stores, of.base) != k_.stores.end();
    const auto axes = static_cast<std::ptrdiff_t>(k_.graph.attributes<PartialAttributes>(n).axes);
    const bool along = product({w.shape.begin(), w.shape.begin() + axes}) == shape_.rows;
    if (stored && is_identity(of) && along && product(w.shape) == shape_.size() && shape_.batches() == 1 &&
        reduces_ == Reduces::kNothing)
      return std::nullopt;
    return "sums columns of what it stores of one product";
  }

  /// Which axis is reduced, by where the elements of one result lie in the product.
  Reduces reduced_axis(NodeId n, const Work& w) const {
    Access a = identity_access(n, w.shape);
    const auto& axes = std::get<ReduceAttributes>(node(n).attributes).axes;
    for (std::size_t i = 0; i < a.shape.size(); ++i)
      if (std::ranges::find(axes, static_cast<int>(i)) == axes.end()) a.strides[i] = 0;
    const auto seen = seen_along(a, shape_.extents());
    if (!seen) return Reduces::kNothing;
    const auto axis = shape_.row_axis();
    const bool rows = seen->strides[axis] != 0, cols = seen->strides[axis + 1] != 0;
    if (!all_zero(seen->strides, axis) || rows == cols) return Reduces::kNothing;
    return rows ? Reduces::kRows : Reduces::kCols;
  }

  static bool all_zero(const Extents& strides, std::size_t count) {
    return std::all_of(strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(count),
                       [](std::int64_t s) { return s == 0; });
  }

  bool lies_along(const Access& a, Axes span) const {
    const Extents extents = extents_of(domain_, span);
    return product(a.shape) == product(extents) && reshaped(a, extents);
  }

  /// Why an array that is read cannot be: it must lie along its value's axes. Values computed here do by their spans.
  Why refusal_of_reads(const Work& w, Axes span) const {
    const bool lie = std::ranges::all_of(w.reads, [&](const Access& a) { return lies_along(a, span); });
    return lie ? std::nullopt : Why(kSeveralSteps);
  }

  /// Why a store is refused: strides do not lead into a join whose axes are cut otherwise (heads, of keys that go into
  /// a cache).
  Why refusal_of_store(NodeId n) const {
    const Access& to = k_.folded.value[at(n)];
    if ((stored_in(k_.folded, n) == n && is_identity(to)) || lies_along(to, spans_.at(n))) return std::nullopt;
    return "stores where strides along the product's axes do not lead";
  }

  static constexpr const char* kSeveralSteps =
      "reads an array that is strided along the product's axes in several steps";

  const Candidate& k_;
  const Shape shape_;
  const Extents domain_ = shape_.domain();
  const Axes all_ = all_axes(domain_.size());
  Axes kept_ = all_;
  NodeId first_ = -1;
  Reduces reduces_ = Reduces::kNothing;
  Spans spans_;
};

NodeId first_product(const Graph& g, const std::vector<NodeId>& nodes) {
  const auto found = std::ranges::find_if(nodes, [&](NodeId n) { return is_product(g[n]); });
  return found == nodes.end() ? -1 : *found;
}

struct Judged {
  Shape shape;
  Reduces reduces = Reduces::kNothing;
  Spans spans;

  std::size_t reduced_axis() const { return shape.row_axis() + (reduces == Reduces::kRows ? 0 : 1); }
};

/// The first way to see the product's axes in which the kernel is a Contraction, or why it is none in the last.
std::optional<Judged> judged(const Candidate& k, BatchAxes axes, std::string& why) {
  const NodeId product = first_product(k.graph, k.nodes);
  if (product < 0) {
    why = "runs products of matrices only";
    return std::nullopt;
  }
  for (const Shape& shape : shapes_of(k.graph[product].shape, axes)) {
    Judge judge(k, shape);
    auto refusal = judge.run();
    if (!refusal) return Judged{shape, judge.reduces(), std::move(judge).spans()};
    why = std::move(*refusal);
  }
  return std::nullopt;
}

/// What a Contraction needs that the executor cannot do.
std::optional<std::string> why_beyond(const Candidate& k, const Judged& j, const ContractionAbilities& can) {
  const std::int64_t row = j.reduces == Reduces::kRows ? j.shape.rows : j.shape.cols;
  for (const NodeId n : k.nodes) {
    const Work& w = k.folded.work[at(n)];
    if (w.kind == WorkKind::kPartial) {
      const bool fits = can.rows_of_sums * k.graph.attributes<PartialAttributes>(n).parts == j.shape.rows;
      if (!fits || !is_half(k.graph[w.reads[0].base].dtype)) return "sums no columns of a product";
    }
    if (kind(k.graph[n].op) == OpKind::kGather) {
      const bool is_pick = k.computes(w.reads[0].base) || is_vector_along(w.reads[0], row);
      if (!is_pick && !can.tables) return "takes no elements of an array at positions that are data";
      if (is_pick && !can.lost_picks && !always_has_position(k.graph, k.folded, n))
        return "takes elements of a product at positions that it knows to be there";
    }
    const NodeId first = w.kind == WorkKind::kReduce ? merged_with(k.graph, k.folded, k.nodes, n) : -1;
    if (first < 0) continue;
    if (!can.variances && k.graph[first].op == Op::mean) return "computes no variances of a product";
    if (!can.positions && k.graph[n].op == Op::min) return "finds no positions of a product's extremes";
  }
  return std::nullopt;
}

Contraction with_products(const Candidate& k, const Judged& j) {
  Contraction c;
  c.batches = j.shape.batches(), c.batch_axes = j.shape.batch_axes, c.rows = j.shape.rows, c.cols = j.shape.cols,
  c.reduces = j.reduces;
  for (const NodeId n : k.nodes) {
    if (!is_product(k.graph[n])) continue;
    const auto& reads = reads_of(k.folded, n);
    c.depth = reads[0].shape.back();
    c.products.push_back({n, k.graph[n].dtype, *factor_of(k.graph, reads[0], k.graph[n].shape, j.shape, true),
                          *factor_of(k.graph, reads[1], k.graph[n].shape, j.shape, false)});
  }
  return c;
}

/// The strides of an operand along the products' axes.
Operand operand_of(const Strided& s, const Space& space, const Judged& j) {
  const auto seen = seen_along({s.node, 1, space.extents, s.strides, s.offset}, j.shape.extents());
  if (!seen) throw std::logic_error("kfusion: a value is not read along the axes of its product");
  Operand o{s.node, s.dtype, seen->strides, {}, s.offset};
  if (j.reduces == Reduces::kNothing) return o;
  const auto axis = static_cast<std::ptrdiff_t>(j.reduced_axis());
  o.reduced = {o.kept[at(axis)]};
  o.kept.erase(o.kept.begin() + axis);
  return o;
}

void set_operands(Kernel& k, const Space& space, const Judged& j, const Steps& steps,
                  const std::vector<Strided>& stores) {
  k.kind = j.reduces == Reduces::kNothing ? Pattern::kPointwise : Pattern::kRows;
  k.kept = j.shape.extents();
  if (j.reduces != Reduces::kNothing) {
    const auto axis = static_cast<std::ptrdiff_t>(j.reduced_axis());
    k.reduced = {k.kept[at(axis)]};
    k.kept.erase(k.kept.begin() + axis);
  }
  for (const Strided& s : steps.loads()) k.loads.push_back(operand_of(s, space, j));
  for (const Strided& s : steps.iotas()) k.iotas.push_back(operand_of(s, space, j));
  for (std::size_t i = 0; i < k.tables.size(); ++i) k.tables[i].from = operand_of(steps.tables()[i], space, j);
  for (std::size_t i = 0; i < stores.size(); ++i) k.stores[i].to = operand_of(stores[i], space, j);
}

}  // namespace

int Contraction::product_of(const Operand& load) const {
  const auto found = std::ranges::find(products, load.node, &Product::node);
  return found == products.end() ? -1 : static_cast<int>(found - products.begin());
}

Kernel sums_of_columns(const Contraction& c, int from, int to) {
  const Operand& stored = c.epilogue.stores[at(from)].to;
  const Store& sums = c.epilogue.stores[at(to)];
  const std::int64_t rows = c.rows / sums.parts, row = stored.kept[stored.kept.size() - 2], col = stored.kept.back();
  Kernel k;
  k.name = c.epilogue.name + "_sums";
  k.kind = row == 1 ? Pattern::kRows : Pattern::kColumns;
  k.kept = {sums.parts, c.cols}, k.reduced = {rows};
  k.loads = {{stored.node, stored.dtype, {rows * row, col}, {row}, stored.offset}};
  Step load, sum;
  load.dtype = load.from = stored.dtype, load.index = 0;
  sum.kind = StepKind::kReduce, sum.op = Op::sum, sum.dtype = sums.to.dtype, sum.from = stored.dtype;
  sum.arguments = {0};
  k.steps = {load, sum};
  k.stores = {{1, {sums.to.node, sums.to.dtype, {c.cols, 1}, {0}, sums.to.offset}}};
  set_schedule(k);
  return k;
}

std::optional<std::string> why_no_contraction(const Candidate& kernel, const ContractionAbilities& can) {
  std::string why;
  const auto j = judged(kernel, can.batches, why);
  return j ? why_beyond(kernel, *j, can) : why;
}

std::optional<Contraction> products_of(const Candidate& kernel, BatchAxes axes) {
  std::string why;
  const auto j = judged(kernel, axes, why);
  return j ? std::optional(with_products(kernel, *j)) : std::nullopt;
}

Contraction Lowering::contraction(int group, BatchAxes axes) const {
  return contraction(plan_.groups[at(group)], axes);
}

Contraction Lowering::contraction(const Group& group, BatchAxes axes) const {
  const Candidate kernel = candidate_of(plan_, group);
  std::string why;
  const auto j = judged(kernel, axes, why);
  if (!j) throw std::logic_error("kfusion: a kernel is no product: " + why);
  Contraction c = with_products(kernel, *j);
  Kernel& k = c.epilogue;
  k.name = name_of(group);
  const bool sums = std::ranges::any_of(group.nodes, [&](NodeId n) { return plan_.graph[n].op == Op::partial_sums; });
  Space space{j->shape.domain(),
              sums ? j->shape.col_axes() : reduced_axes(j->shape, j->reduces),  // of a part: a row
              {j->spans.begin(), j->spans.end()}};
  Steps steps(plan_, group, space, k);
  const std::vector<Strided> stores = add_steps(group, space, steps, k);
  set_operands(k, space, *j, steps, stores);
  set_schedule(k);
  set_labels(k);
  return c;
}

}  // namespace kfusion
