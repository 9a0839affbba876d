#include "kfusion/graph/axes.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

AxisList all_axes_of(const Extents& shape, int is) { return AxisList(shape.size(), is); }

AxisList numbers(std::size_t count) {
  AxisList axes(count);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

/// Axes of two shapes of as many elements that belong together, without those of one element.
struct AxisGroup {
  AxisList from, to;
};

std::vector<AxisGroup> axis_groups(const Extents& from, const Extents& to) {
  std::vector<AxisGroup> groups;
  std::size_t i = 0, j = 0;
  const auto next = [](const Extents& shape, std::size_t& k) {
    while (k < shape.size() && shape[k] == 1) ++k;
    return k < shape.size();
  };
  while (next(from, i) && next(to, j)) {
    AxisGroup group{{static_cast<int>(i)}, {static_cast<int>(j)}};
    std::int64_t left = from[i++], right = to[j++];
    while (left != right) {
      const bool is_left = left < right;
      std::size_t& k = is_left ? i : j;
      next(is_left ? from : to, k);
      (is_left ? left : right) *= (is_left ? from : to)[k];
      (is_left ? group.from : group.to).push_back(static_cast<int>(k++));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

class Rules {
 public:
  Rules(const Graph& g, NodeId n) : g_(g), node_(g[n]) {}

  AxisRule run() {
    const OpKind of = kind(node_.op);
    if (of == OpKind::kMap || of == OpKind::kCast || node_.op == Op::broadcast) {
      for (const NodeId a : node_.arguments) rule_.to_result.push_back(aligned_axes(g_[a].shape, node_.shape));
    } else if (of == OpKind::kReduce) {
      reduce(std::get<ReduceAttributes>(node_.attributes));
    } else if (node_.op == Op::iota) {
      rule_.whole = {std::get<IotaAttributes>(node_.attributes).axis};
    } else if (of != OpKind::kSource) {
      other();
    }
    return std::move(rule_);
  }

 private:
  const Extents& shape(std::size_t k) const { return g_[node_.arguments[k]].shape; }
  AxisList aligned(std::size_t k) const { return aligned_axes(shape(k), node_.shape); }

  void reduce(const ReduceAttributes& r) {
    AxisList axes;
    int next = 0;
    for (int d = 0; d < std::ssize(shape(0)); ++d) {
      const bool is_reduced = std::ranges::count(r.axes, d) > 0;
      axes.push_back(is_reduced ? int{kReducedAxis} : next);
      next += !is_reduced || r.keepdims ? 1 : 0;
    }
    rule_.to_result = {axes};
  }

  void other() {
    switch (node_.op) {
      case Op::transpose: {
        const auto& axes = std::get<TransposeAttributes>(node_.attributes).axes;
        AxisList to(axes.size());
        for (std::size_t d = 0; d < axes.size(); ++d) to[at(axes[d])] = static_cast<int>(d);
        rule_.to_result = {to};
        return;
      }
      case Op::slice:
        return slice(std::get<SliceAttributes>(node_.attributes));
      case Op::reshape:
        return reshape();
      case Op::concatenate: {
        const int axis = std::get<JoinAttributes>(node_.attributes).axis;
        for (std::size_t k = 0; k < node_.arguments.size(); ++k) {
          rule_.to_result.push_back(aligned(k));
          rule_.to_result[k][at(axis)] = kWholeAxis;
        }
        rule_.whole = {axis};
        return;
      }
      case Op::matmul:
        return matmul();
      case Op::conv2d:
        return conv2d(std::get<Conv2dAttributes>(node_.attributes));
      case Op::take:
      case Op::take_along_axis:
        return gather(at(std::get<TakeAttributes>(node_.attributes).axis));
      default:  // nobody knows what it reads
        for (std::size_t k = 0; k < node_.arguments.size(); ++k)
          rule_.to_result.push_back(all_axes_of(shape(k), kWholeAxis));
        rule_.whole = numbers(node_.shape.size());
    }
  }

  void slice(const SliceAttributes& s) {
    AxisList axes;
    for (std::size_t d = 0; d < node_.shape.size(); ++d) {
      const bool is_all = s.start[d] == 0 && s.step[d] == 1 && node_.shape[d] == shape(0)[d];
      axes.push_back(is_all ? static_cast<int>(d) : int{kWholeAxis});
      if (!is_all) rule_.whole.push_back(static_cast<int>(d));
    }
    rule_.to_result = {axes};
  }

  void reshape() {
    if (node_.size() == 0) {
      rule_.to_result = {all_axes_of(shape(0), kWholeAxis)};
      rule_.whole = numbers(node_.shape.size());
      return;
    }
    AxisList axes = all_axes_of(shape(0), kRepeatedAxis);
    for (const AxisGroup& group : axis_groups(shape(0), node_.shape)) {
      const bool is_one = group.from.size() == 1 && group.to.size() == 1;
      for (const int d : group.from) axes[at(d)] = is_one ? group.to[0] : int{kWholeAxis};
      if (!is_one) rule_.whole.insert(rule_.whole.end(), group.to.begin(), group.to.end());
    }
    rule_.to_result = {axes};
  }

  /// A factor of one axis is a row on the left, a column on the right.
  void matmul() {
    const auto ndim = static_cast<int>(node_.shape.size());
    const int right = shape(1).size() > 1 ? 1 : 0, left = shape(0).size() > 1 ? 1 : 0;
    for (const std::size_t k : {0U, 1U}) {
      const Extents& own = shape(k);
      const auto matrix = std::min<std::size_t>(own.size(), 2);
      AxisList axes = aligned_axes({own.begin(), own.end() - static_cast<std::ptrdiff_t>(matrix)},
                                   {node_.shape.begin(), node_.shape.end() - left - right});
      if (k == 0 && left) axes.push_back(ndim - 1 - right);
      axes.push_back(kReducedAxis);
      if (k == 1 && right) axes.push_back(ndim - 1);
      rule_.to_result.push_back(std::move(axes));
    }
  }

  void conv2d(const Conv2dAttributes& c) {
    AxisList images(4, kWholeAxis), filters(4, kWholeAxis);
    images[0] = 0;
    rule_.whole = {2, 3};
    if (c.groups == 1)
      filters[0] = 1;
    else
      rule_.whole.push_back(1);
    rule_.to_result = {images, filters};
  }

  void gather(std::size_t axis) {
    if (node_.op == Op::take_along_axis) {
      rule_.to_result = {aligned(0), aligned(1)};
    } else {
      const auto width = static_cast<int>(shape(1).size());
      AxisList table, indices;
      for (int d = 0; d < std::ssize(shape(0)); ++d) table.push_back(at(d) < axis ? d : d + width - 1);
      for (int d = 0; d < width; ++d) indices.push_back(static_cast<int>(axis) + d);
      rule_.to_result = {table, indices};
    }
    rule_.to_result[0][axis] = kWholeAxis;
  }

  const Graph& g_;
  const Node& node_;
  AxisRule rule_;
};

/// Attributes of what has one more axis in front.
struct Behind {
  Attributes operator()(InputAttributes input) const { return input.strides = {}, input; }
  Attributes operator()(IotaAttributes iota) const { return ++iota.axis, iota; }
  Attributes operator()(ReduceAttributes reduce) const {
    for (int& axis : reduce.axes) ++axis;
    return reduce.whole = false, reduce;
  }
  Attributes operator()(TransposeAttributes transpose) const {
    AxisList axes = {0};
    for (const int axis : transpose.axes) axes.push_back(axis + 1);
    return TransposeAttributes{axes};
  }
  Attributes operator()(SliceAttributes slice) const {
    slice.start.insert(slice.start.begin(), 0);
    slice.step.insert(slice.step.begin(), 1);
    return slice;
  }
  Attributes operator()(TakeAttributes take) const { return ++take.axis, take; }
  Attributes operator()(JoinAttributes join) const { return ++join.axis, join; }
  template <class Others>
  Attributes operator()(Others others) const {
    return others;
  }
};

class Labelling {
 public:
  explicit Labelling(const Graph& g) : g_(g) {}

  AxisLabels run() {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) visit(n);
    for (AxisList& axes : found_.of)
      for (int& label : axes) label = root(label);
    for (auto& [n, axes] : found_.reduced)
      for (int& label : axes) label = root(label);
    for (auto& [label, n] : needed_) label = root(label);
    std::set<int> seen;
    std::erase_if(needed_, [&](const auto& label) { return !seen.insert(label.first).second; });
    found_.whole = std::move(needed_);
    return std::move(found_);
  }

 private:
  int root(int label) {
    while (parent_[at(label)] != label) label = parent_[at(label)] = parent_[at(parent_[at(label)])];
    return label;
  }
  void join(int a, int b) {
    a = root(a), b = root(b);
    parent_[at(std::max(a, b))] = std::min(a, b);
  }

  void visit(NodeId n) {
    AxisList own;
    for (std::size_t d = 0; d < g_[n].shape.size(); ++d) {
      own.push_back(static_cast<int>(parent_.size()));
      parent_.push_back(own.back());
    }
    found_.of.push_back(own);
    const AxisRule rule = axis_rule(g_, n);
    AxisList reduced;  // of the first argument
    for (std::size_t k = 0; k < rule.to_result.size(); ++k) {
      const AxisList& labels = found_.of[at(g_[n].arguments[k])];
      std::size_t next = 0;
      for (std::size_t d = 0; d < labels.size(); ++d) {
        const int to = rule.to_result[k][d];
        if (to >= 0) join(labels[d], own[at(to)]);
        if (to == kWholeAxis) needed_.emplace_back(labels[d], n);
        if (to == kReducedAxis && k == 0) reduced.push_back(labels[d]);
        if (to == kReducedAxis && k > 0) join(labels[d], reduced[next++]);
      }
    }
    if (kind(g_[n].op) == OpKind::kReduce || g_[n].op == Op::matmul) found_.reduced[n] = std::move(reduced);
    for (const int d : rule.whole) needed_.emplace_back(own[at(d)], n);
  }

  const Graph& g_;
  std::vector<int> parent_;  ///< by label
  std::vector<std::pair<int, NodeId>> needed_;
  AxisLabels found_;
};

}  // namespace

AxisList aligned_axes(const Extents& argument, const Extents& result) {
  AxisList axes;
  const std::size_t lead = result.size() - argument.size();
  for (std::size_t d = 0; d < argument.size(); ++d)
    axes.push_back(argument[d] == result[lead + d] ? static_cast<int>(lead + d) : int{kRepeatedAxis});
  return axes;
}

AxisRule axis_rule(const Graph& g, NodeId n) { return Rules(g, n).run(); }

Node behind_axis(Node n, std::int64_t size) {
  n.shape.insert(n.shape.begin(), size);
  n.attributes = std::visit(Behind{}, std::move(n.attributes));
  return n;
}

AxisLabels axis_labels(const Graph& g) { return Labelling(g).run(); }

}  // namespace kfusion
