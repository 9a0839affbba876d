// Sums along rows beside what is computed of each row: y = f(x) row by row, and the sums of columns of g(x), as
// gradients of weights and biases are.
//
// A kernel of rows has all elements at hand, but no column as a whole. So it adds up the columns of as many parts of
// the rows as the device has work for at once, and a second kernel sums these parts. A kernel around a product does so,
// too, as for biases of linear layers before an activation: a part is the rows of a tile then.
#include "kfusion/plan/partition/partial_sums.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "kfusion/divide_up.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

/// A part has so many rows at least, so that its sums are few beside them.
constexpr std::int64_t kLeastRows = 16;

/// Elements of a row, the sums of which lanes have in registers, or to a CPU a row of sums that its caches hold.
constexpr std::int64_t kLeastColumns = 128, kMostColumns = 1 << 13;

/// Longer rows are shared by two blocks, on GPUs whose bulk copies bring them: vectors of 16 bytes of a block.
constexpr std::int64_t kVectorBytes = 16, kMostVectors = 1 << 11, kMostBlocks = 2;

/// As many leading axes as the sum is over; 0: it is no sum of leading axes alone.
int summed_axes(const Graph& g, const Node& n) {
  const auto* reduce = std::get_if<ReduceAttributes>(&n.attributes);
  if (n.op != Op::sum || reduce == nullptr || !is_float(n.dtype)) return 0;
  const auto count = std::ssize(reduce->axes);
  const bool leads = count < std::ssize(g[n.arguments[0]].shape) && reduce->axes.back() == count - 1;
  return leads ? static_cast<int>(count) : 0;
}

std::int64_t extent(const Extents& shape, std::size_t first, std::size_t end) {
  return product(
      {shape.begin() + static_cast<std::ptrdiff_t>(first), shape.begin() + static_cast<std::ptrdiff_t>(end)});
}

/// The shapes of which rows are reduced, and along how many axes these lie: the last ones.
class ReducedRows {
 public:
  explicit ReducedRows(const Graph& g) {
    for (const Node& n : g.nodes) {
      const auto* reduce = std::get_if<ReduceAttributes>(&n.attributes);
      if (reduce == nullptr || reduce->axes.empty()) continue;
      const Extents& shape = g[n.arguments[0]].shape;
      const auto rest = static_cast<std::int64_t>(std::ssize(shape) - std::ssize(reduce->axes));
      if (rest > 0 && reduce->axes.front() == rest) sets_[shape].insert(static_cast<int>(rest));
    }
  }

  bool have(const Extents& shape, int axes) const {
    const auto found = sets_.find(shape);
    return found != sets_.end() && found->second.contains(axes);
  }

 private:
  std::map<Extents, std::set<int>> sets_;
};

/// Whether an array of that shape does not lie row after row. The kernel would go by rows all the same: gradients of
/// layer norm of transposed arrays took a CPU 52 ms with such sums, 45 to 48 without.
bool lies_across(const Graph& g, const Extents& shape) {
  return std::ranges::any_of(g.nodes, [&](const Node& n) {
    if (n.op != Op::input || n.shape != shape) return false;
    const Extents& strides = std::get<InputAttributes>(n.attributes).strides;
    return !strides.empty() && shape.back() > 1 && std::abs(strides.back()) > 1;
  });
}

/// Rows of a part on a CPU: a float holds the sums of so many rows about as exactly as their elements.
constexpr std::int64_t kRowsOfCpuPart = 32, kMostCpuParts = 256;

/// Bytes of an element of the narrowest input as large as the matrix that is summed, or of its own.
std::int64_t item_of_rows(const Graph& g, const Node& summed) {
  auto item = static_cast<std::int64_t>(item_bytes(summed.dtype));
  for (const Node& n : g.nodes)
    if (n.op == Op::input && product(n.shape) == product(summed.shape))
      item = std::min(item, static_cast<std::int64_t>(item_bytes(n.dtype)));
  return item;
}

/// Blocks that share a row of so many bytes; 0: no rows of this kind.
std::int64_t blocks_for(std::int64_t columns, std::int64_t item, const Device& device) {
  if (columns <= kMostColumns) return 1;
  const bool whole = columns * item % kVectorBytes == 0 && device.compute_capability >= 90;
  const std::int64_t blocks = divide_up(columns * item / kVectorBytes, kMostVectors);
  return whole && blocks <= kMostBlocks ? blocks : 0;
}

/// One for each multiprocessor of a GPU, or for those that share a row, fewer of few rows. 0: rows of so many columns
/// do not suit, or are too few.
std::int64_t parts_for(std::int64_t rows, std::int64_t columns, std::int64_t item, const Device& device) {
  constexpr std::int64_t kShare = 4;
  const std::int64_t blocks = columns < kLeastColumns ? 0 : blocks_for(columns, item, device);
  if (blocks == 0) return 0;
  if (device.is_cpu) return rows >= 2 * kRowsOfCpuPart ? std::min(rows / kRowsOfCpuPart, kMostCpuParts) : 0;
  const std::int64_t all = std::max<std::int64_t>(device.units / blocks, 1);
  const std::int64_t parts = std::clamp(rows / kLeastRows, divide_up(all, kShare), all);
  return parts > 1 && rows / parts >= kLeastRows ? parts : 0;
}

/// Whether n is a product of half types, or maps compute it of the elements of one.
class OfProducts {
 public:
  explicit OfProducts(const Graph& g) : g_(g), known_(g.nodes.size(), -1) {}

  bool is(NodeId n) {
    signed char& known = known_[at(n)];
    if (known < 0) known = is_half(g_[n].dtype) && find(n) ? 1 : 0;
    return known > 0;
  }

 private:
  bool find(NodeId n) {
    const Node& node = g_[n];
    if (node.op == Op::matmul) return true;
    const OpKind k = kind(node.op);
    return (k == OpKind::kMap || k == OpKind::kCast || node.op == Op::reshape) &&
           std::ranges::any_of(node.arguments, [&](NodeId a) { return g_[a].size() == node.size() && is(a); });
  }

  const Graph& g_;
  std::vector<signed char> known_;  ///< by node: -1 not yet, else whether
};

/// With fewer rows or columns the library's kernels, or turned tiles, are quicker.
constexpr std::int64_t kLeastRowsOfProduct = 512, kLeastColumnsOfProduct = 64;

std::int64_t parts_of_product(std::int64_t rows, std::int64_t columns, const Device& device) {
  const bool suit = rows >= kLeastRowsOfProduct && rows % kRowsOfTile == 0 && columns >= kLeastColumnsOfProduct;
  return suit && device.compute_capability == 90 ? rows / kRowsOfTile : 0;
}

/// Sums along leading axes as sums of partial sums (Op::partial_sums): of as many as `parts_of` says for the node that
/// is summed, along how many axes, with so many rows and columns. 0: the sum stays.
template <class PartsOf>
std::optional<Graph> summed_in_parts(const Graph& g, PartsOf parts_of) {
  GraphCopy to(g);
  return to.changed([&](NodeId n, const Node& sum) -> std::optional<NodeId> {
    const int axes = summed_axes(g, g[n]);
    if (axes == 0) return std::nullopt;
    const Extents& shape = g[g[n].arguments[0]].shape;
    const std::int64_t rows = extent(shape, 0, at(axes)), columns = extent(shape, at(axes), shape.size());
    const std::int64_t parts = parts_of(g[n].arguments[0], axes, rows, columns);
    if (parts == 0) return std::nullopt;
    Node total = sum;
    total.dtype = is_half(sum.dtype) ? DType::kFloat32 : sum.dtype;
    total.shape = {shape.begin() + axes, shape.end()};
    Node partial = total;
    partial.shape.insert(partial.shape.begin(), 1, parts);
    const NodeId made = to.add(std::move(partial), Op::partial_sums, sum.arguments, PartialAttributes{axes, parts});
    const NodeId whole = to.add(std::move(total), Op::sum, {made}, ReduceAttributes{{0}, false, false});
    return to.reshaped(to.in_dtype(whole, sum.dtype, sum.stage), sum.shape, sum.stage);
  });
}

}  // namespace

/// Sums in parts what is made of a product's elements, of a half type, perhaps after maps.
std::optional<Graph> products_summed_in_parts(const Graph& g, const Device& device) {
  OfProducts products(g);
  return summed_in_parts(g, [&](NodeId summed, int, std::int64_t rows, std::int64_t columns) {
    return products.is(summed) ? parts_of_product(rows, columns, device) : 0;
  });
}

/// Where the other axes of something of the same shape are reduced.
std::optional<Graph> rows_summed_in_parts(const Graph& g, const Device& device) {
  const ReducedRows reduced(g);
  return summed_in_parts(g, [&](NodeId summed, int axes, std::int64_t rows, std::int64_t columns) -> std::int64_t {
    const Extents& shape = g[summed].shape;
    if (!reduced.have(shape, axes) || (device.is_cpu && lies_across(g, shape))) return 0;
    return parts_for(rows, columns, item_of_rows(g, g[summed]), device);
  });
}

}  // namespace kfusion
