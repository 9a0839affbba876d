// Adjoints of products and convolutions: products and convolutions.
#include <algorithm>
#include <numeric>

#include "kfusion/grad/backward.hpp"
#include "kfusion/grad/emitter.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {
namespace {

NodeId matrix_transpose(GraphBuilder& b, NodeId x) {
  AxisList axes(b.graph()[x].shape.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  return b.transpose(x, axes);
}

/// Leading axes as rows.
NodeId as_rows(GraphBuilder& b, NodeId x) {
  const Extents shape = b.graph()[x].shape;
  std::int64_t rows = 1;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  return shape.size() == 2 ? x : b.reshape(x, {rows, shape.back()});
}

NodeId flipped(GraphBuilder& b, NodeId w) {
  const Extents s = b.graph()[w].shape;
  return b.slice(w, {{0, s[0], 1}, {0, s[1], 1}, {s[2] - 1, -1, -1}, {s[3] - 1, -1, -1}});
}

/// What is split in two axes, the first of which are `groups`, with the second one before it or behind it.
NodeId regrouped(GraphBuilder& b, NodeId x, Extents split, AxisList order, Extents merged) {
  return b.reshape(b.transpose(b.reshape(x, std::move(split)), std::move(order)), std::move(merged));
}

}  // namespace

/// The gradient of a transposed factor is computed as that of the matrix, in its own order: no copy turns it.
void Backward::of_matmul(NodeId id, NodeId g) {
  const NodeId x = node(id).arguments[0], y = node(id).arguments[1];
  if (wanted(x)) {
    const auto other = transposed(x);
    const NodeId dx = other ? b_.matmul(y, matrix_transpose(b_, g)) : b_.matmul(g, matrix_transpose(b_, y));
    const NodeId to = other.value_or(x);
    give(to, sum_to(b_, dx, node(to).shape));
  }
  if (!wanted(y)) return;
  const auto other = transposed(y);
  const NodeId to = other.value_or(y);
  // One matrix for the whole batch takes one product; one for each of the batch would have to be added up.
  const bool is_one = node(y).shape.size() == 2;
  const NodeId rows = is_one ? as_rows(b_, x) : x, g_rows = is_one ? as_rows(b_, g) : g;
  const NodeId dy =
      other ? b_.matmul(matrix_transpose(b_, g_rows), rows) : b_.matmul(matrix_transpose(b_, rows), g_rows);
  give(to, sum_to(b_, dy, node(to).shape));
}

/// What a node is the matrix transpose of, where gradients pass through it.
std::optional<NodeId> Backward::transposed(NodeId id) const {
  const Node& n = node(id);
  if (n.op != Op::transpose || b_.is_stopped(id) || is_input(id) || !wanted(n.arguments[0])) return std::nullopt;
  const AxisList& axes = std::get<TransposeAttributes>(n.attributes).axes;
  const auto rank = static_cast<int>(axes.size());
  for (int d = 0; d < rank; ++d) {
    const int from = d == rank - 1 ? rank - 2 : d == rank - 2 ? rank - 1 : d;
    if (axes[at(d)] != from) return std::nullopt;
  }
  return n.arguments[0];
}

void Backward::of_conv2d(NodeId id, NodeId g) {
  const Node n = node(id);
  const NodeId x = n.arguments[0], w = n.arguments[1];
  if (n.library == Library::kTorch) return conv2d_of_torch(n, g);
  if (wanted(x)) give(x, conv2d_input(n, w, g));
  if (wanted(w)) give(w, conv2d_weight(n, x, g));
}

/// torch has functions for them.
void Backward::conv2d_of_torch(const Node& conv, NodeId g) {
  const auto& a = std::get<Conv2dAttributes>(conv.attributes);
  LibraryAdjoint adjoint{
      "conv2d", {a.stride[0], a.stride[1], a.padding[0], a.padding[1], a.dilation[0], a.dilation[1], a.groups}, {}, {}};
  const Extents& w = node(conv.arguments[1]).shape;
  const std::int64_t gradients = wanted(conv.arguments[0]) + wanted(conv.arguments[1]);
  const std::int64_t flops = 2 * gradients * conv.size() * w[1] * w[2] * w[3];
  call_library(conv, std::move(adjoint), {conv.arguments[0], conv.arguments[1], g}, "conv2d_backward", flops);
}

/// g with zeros between its elements, convolved with the flipped windows of each channel.
NodeId Backward::conv2d_input(const Node& conv, NodeId w, NodeId g) {
  const auto& a = std::get<Conv2dAttributes>(conv.attributes);
  const Extents x = node(conv.arguments[0]).shape, s = node(w).shape;
  const std::int64_t groups = a.groups, out = s[0] / groups;
  w = regrouped(b_, flipped(b_, w), {groups, out, s[1], s[2], s[3]}, {0, 2, 1, 3, 4}, {x[1], out, s[2], s[3]});
  Conv2dAttributes back;
  back.groups = groups;
  for (int d = 0; d < 2; ++d) {
    back.dilation[d] = a.dilation[d];
    back.padding[d] = a.dilation[d] * (s[at(2 + d)] - 1);
    g = dilated(g, 2 + d, a.stride[d]);
  }
  NodeId dx = b_.conv2d(g, w, back);
  for (int d = 0; d < 2; ++d) dx = window(b_, dx, 2 + d, a.padding[d], x[at(2 + d)]);
  return dx;
}

/// x convolved with g, samples in the place of channels.
NodeId Backward::conv2d_weight(const Node& conv, NodeId x, NodeId g) {
  const auto& a = std::get<Conv2dAttributes>(conv.attributes);
  const Extents s = node(x).shape, w = node(conv.arguments[1]).shape;
  const std::int64_t groups = a.groups, in = w[1];
  x = regrouped(b_, x, {s[0], groups, in, s[2], s[3]}, {2, 1, 0, 3, 4}, {in, groups * s[0], s[2], s[3]});
  g = b_.transpose(g, {1, 0, 2, 3});
  Conv2dAttributes back;
  back.groups = groups;
  for (int d = 0; d < 2; ++d) {
    back.padding[d] = a.padding[d];
    back.stride[d] = a.dilation[d];
    back.dilation[d] = a.stride[d];
  }
  NodeId dw = b_.conv2d(x, g, back);
  for (int d = 0; d < 2; ++d) dw = window(b_, dw, 2 + d, 0, w[at(2 + d)]);
  return b_.transpose(dw, {1, 0, 2, 3});
}

}  // namespace kfusion::grad
