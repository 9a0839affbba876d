// Convolutions of half types by windows of one element, without stride and padding, as products of all pixels and the
// weight: (N H W, C) by (C, O). Not of images that the caller's arrays have with their channels outermost: a product
// would read them against their order. Elementwise operations on such products run over pixels, too.
#include <algorithm>
#include <map>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

class AsProducts : private GraphCopy {
 public:
  using GraphCopy::GraphCopy;

  std::optional<Graph> run() {
    return changed([&](NodeId n, const Node& node) -> std::optional<NodeId> {
      if (is_product_of_pixels(n)) return product(node);
      if (maps_pixels(node)) return map(node);
      return std::nullopt;
    });
  }

 private:
  bool is_product_of_pixels(NodeId n) const {
    const Node& node = g_[n];
    if (node.op != Op::conv2d || !is_half(node.dtype) || node.size() == 0) return false;
    const Node &image = g_[node.arguments[0]], &weight = g_[node.arguments[1]];
    const auto& a = std::get<Conv2dAttributes>(node.attributes);
    const bool is_plain =
        a.groups == 1 && a.stride[0] == 1 && a.stride[1] == 1 && a.padding[0] == 0 && a.padding[1] == 0;
    return is_plain && weight.shape[2] == 1 && weight.shape[3] == 1 && image.dtype == node.dtype &&
           weight.dtype == node.dtype && !has_channels_outermost(node.arguments[0]);
  }

  /// Whether an array of the caller's has its channels outermost. Intermediates lie as they are read
  /// (lower/layouts.hpp).
  bool has_channels_outermost(NodeId image) const {
    const auto* const input = std::get_if<InputAttributes>(&g_[image].attributes);
    const Extents& shape = g_[image].shape;
    return input && shape[1] > 1 && shape[2] * shape[3] > 1 && (input->strides.empty() || input->strides[1] != 1);
  }

  NodeId product(const Node& convolution) {
    const NodeId image = convolution.arguments[0], weight = convolution.arguments[1];
    const Extents shape = to_[image].shape, windows = to_[weight].shape;
    const StageId stage = convolution.stage;
    const NodeId pixels = view_of(image, Op::transpose, {shape[0], shape[2], shape[3], shape[1]}, stage,
                                  TransposeAttributes{{0, 2, 3, 1}});
    const NodeId rows = view_of(weight, Op::reshape, {windows[0], windows[1]}, stage);
    const NodeId columns = view_of(rows, Op::transpose, {windows[1], windows[0]}, stage, TransposeAttributes{{1, 0}});
    Node product = convolution;
    product.op = Op::matmul;
    product.attributes = {};
    product.shape = {shape[0], shape[2], shape[3], windows[0]};
    product.arguments = {pixels, columns};
    return as_image(add(std::move(product)));
  }

  /// Pixels, seen as an image.
  NodeId as_image(NodeId pixels) {
    const Extents& s = to_[pixels].shape;
    const NodeId image =
        view_of(pixels, Op::transpose, {s[0], s[3], s[1], s[2]}, to_[pixels].stage, TransposeAttributes{{0, 3, 1, 2}});
    pixels_of_.emplace(image, pixels);
    return image;
  }

  /// Whether a node of the copy is elementwise over an image that is pixels: these are what it is computed over.
  bool maps_pixels(const Node& n) const {
    if ((kind(n.op) != OpKind::kMap && kind(n.op) != OpKind::kCast) || n.shape.size() != 4) return false;
    return std::ranges::any_of(n.arguments, [&](NodeId a) { return pixels_of_.contains(a); });
  }

  NodeId map(Node n) {
    for (NodeId& a : n.arguments) a = as_pixels(n, a);
    n.shape = {n.shape[0], n.shape[2], n.shape[3], n.shape[1]};
    return as_image(add(std::move(n)));
  }

  NodeId as_pixels(const Node& reader, NodeId a) {
    if (const auto found = pixels_of_.find(a); found != pixels_of_.end()) return found->second;
    Extents s = to_[a].shape;
    if (s.empty()) return a;
    if (s.size() < 4) {
      s.insert(s.begin(), 4 - s.size(), 1);
      a = view_of(a, Op::reshape, s, reader.stage);
    }
    return view_of(a, Op::transpose, {s[0], s[2], s[3], s[1]}, reader.stage, TransposeAttributes{{0, 2, 3, 1}});
  }

  std::map<NodeId, NodeId> pixels_of_;  ///< by image of the copy
};

}  // namespace

std::optional<Graph> pointwise_convolutions(const Graph& g, const Device&) { return AsProducts(g).run(); }

}  // namespace kfusion
