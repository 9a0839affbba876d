#include "kfusion/lower/layouts.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>

#include "kfusion/lower/outputs.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/executor.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// Whether strides are those of a dense array with its axes in some order.
bool is_dense(const Extents& shape, const Extents& strides) {
  std::vector<std::size_t> axes(shape.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::ranges::sort(axes, {}, [&](std::size_t i) { return strides[i]; });
  std::int64_t stride = 1;
  for (const std::size_t i : axes) {
    if (shape[i] == 1) continue;
    if (strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

/// Extents of 1 have any stride.
bool same(const Extents& shape, const Extents& a, const Extents& b) {
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1 && a[i] != b[i]) return false;
  return true;
}

/// The axis of a C-ordered value that a step of `stride` elements goes along, by the axis's own stride.
std::optional<std::size_t> axis_of(const Extents& shape, const Extents& own, std::int64_t stride) {
  for (std::size_t k = 0; k < shape.size(); ++k)
    if (shape[k] > 1 && stride % own[k] == 0 && std::abs(stride / own[k]) < shape[k]) return k;
  return std::nullopt;
}

/// An access of a value in C order, where its axes have `strides` instead. Nothing where a step of the access goes
/// along several axes of the value.
std::optional<Access> moved(const Access& a, const Extents& shape, const Extents& strides) {
  if (a.has_positions()) return std::nullopt;
  const Extents own = identity_access(a.base, shape).strides;
  Access r = a;
  Extents first(shape.size()), last(shape.size());  // positions that are read along each axis
  std::int64_t rest = a.offset;
  r.offset = 0;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    if (shape[k] == 1) continue;
    first[k] = last[k] = rest / own[k];
    rest %= own[k];
    r.offset += first[k] * strides[k];
  }
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.strides[i] == 0 || a.shape[i] == 1) continue;
    const auto k = axis_of(shape, own, a.strides[i]);
    if (!k) return std::nullopt;
    const std::int64_t steps = a.strides[i] / own[*k];
    (steps > 0 ? last : first)[*k] += steps * (a.shape[i] - 1);
    r.strides[i] = steps * strides[*k];
  }
  for (std::size_t k = 0; k < shape.size(); ++k)
    if (shape[k] > 1 && (first[k] < 0 || last[k] >= shape[k])) return std::nullopt;
  return r;
}

/// torch's functions of images whose results lie as their first argument does, or their weight.
struct Follows {
  std::string_view function;
  bool has_weight = false;
};
constexpr Follows kFollow[] = {{"torch.conv2d", true}, {"torch.conv_transpose2d", true}, {"torch.max_pool2d"},
                               {"torch.avg_pool2d"},   {"torch.adaptive_avg_pool2d"},    {"torch.interpolate"}};

std::string_view called(const Node& n) {
  if (n.op == Op::conv2d) return kFollow[0].function;
  return n.op == Op::library_call ? std::string_view(std::get<LibraryCallAttributes>(n.attributes).function) : "";
}

class Layouts {
 public:
  Layouts(Plan& plan, const Device& device)
      : p_(plan), device_(device), output_of_(first_outputs(plan)), any_weight_last_(has_weight_last()) {}

  void run() {
    for (const Group& group : p_.groups) {
      if (group.stores.size() != 1 && group.pattern != Pattern::kPointwise) continue;
      for (const NodeId stored : group.stores) {
        const NodeId n = stored_in(p_.folded, stored);
        if (output_of_[at(n)] >= 0 || p_.folded.value[at(n)].base != n || product(p_.computed[at(n)]) == 0) continue;
        if (p_.computed[at(n)] != p_.folded.value[at(n)].shape) continue;
        if (n == stored) {
          if (const auto strides = wanted(group, n)) lay(n, *strides);
        } else if (writers_of(p_.folded, n).back() == stored && are_all_last(n)) {
          lay(n, channels_last(p_.computed[at(n)]));
        }
      }
    }
  }

 private:
  /// Whether the parts of a join are images whose channels lie innermost where they come from.
  bool are_all_last(NodeId join) const {
    if (p_.computed[at(join)].size() != 4) return false;
    return std::ranges::all_of(writers_of(p_.folded, join), [&](NodeId part) {
      const int i = p_.group_of[at(part)];
      if (i < 0 || p_.groups[at(i)].pattern != Pattern::kPointwise) return false;
      const Extents& shape = p_.computed[at(part)];
      const auto strides = shared(p_.groups[at(i)], shape);
      return shape.size() == 4 && strides && same(shape, *strides, channels_last(shape));
    });
  }

  /// The layout that a map, or a convolution or the like by torch, gives its result: that of the whole arrays that it
  /// reads.
  std::optional<Extents> wanted(const Group& group, NodeId n) const {
    const Node& node = p_.graph[n];
    if (group.pattern == Pattern::kPointwise) {
      const Extents& shape = p_.computed[at(n)];
      const std::optional<Extents> strides = normalised(group, shape);
      return different(shape, strides ? strides : shared(group, shape));
    }
    if (group.executor && group.executor->lays_channels_last()) return channels_last(p_.computed[at(n)]);
    if (node.library != Library::kTorch || group.nodes.size() != 1 || node.shape.size() != 4) return std::nullopt;
    if (runs_better_last(node)) return channels_last(node.shape);
    const std::vector<Access>& reads = p_.folded.work[at(n)].reads;
    const auto follows = std::ranges::find(kFollow, called(node), &Follows::function);
    if (follows == std::end(kFollow) || reads[0].shape.size() != 4) return std::nullopt;
    bool is_last = lies_last(reads[0]);
    // A weight with windows of one element looks alike in both orders: it lies as others do.
    if (follows->has_weight && reads.size() > 1)
      is_last |= lies_last(reads[1]) || (any_weight_last_ && has_no_window(reads[1]));
    if (!is_last) return std::nullopt;
    return channels_last(node.shape);
  }

  /// Whether a GPU's convolution is by tensor cores, for which cuDNN turns images whose channels lie outermost, and its
  /// results back (a UNet in bfloat16 on an H200: 916 of 3089 us).
  static bool runs_better_last(const Node& n) {
    if (n.op != Op::conv2d || n.place.on_host() || !is_half(n.dtype) || n.shape[1] == 1) return false;
    return std::get<Conv2dAttributes>(n.attributes).groups == 1;
  }

  /// Strides, unless they are those of C order.
  static std::optional<Extents> different(const Extents& shape, std::optional<Extents> strides) {
    if (strides && same(shape, *strides, identity_access(0, shape).strides)) return std::nullopt;
    return strides;
  }

  /// The layout of a map that reads what other kernels reduce: the axes that they reduce along lie innermost, as in the
  /// results of torch's layer_norm. Where channels are normalised, convolutions find them innermost.
  std::optional<Extents> normalised(const Group& group, const Extents& shape) const {
    std::optional<std::vector<std::size_t>> axes;
    for (const Load& l : group.loads) {
      const int from = p_.group_of[at(l.access.base)];
      if (from < 0 || p_.groups[at(from)].pattern != Pattern::kRows || l.access.shape != shape) continue;
      std::vector<std::size_t> order(shape.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      const auto reduced =
          std::ranges::stable_partition(order, [&](std::size_t i) { return l.access.strides[i] != 0; });
      if (reduced.empty()) continue;
      if (axes && *axes != order) return std::nullopt;
      axes = order;
    }
    if (!axes) return std::nullopt;
    Extents strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t k = shape.size(); k-- > 0; stride *= shape[(*axes)[k]]) strides[(*axes)[k]] = stride;
    return strides;
  }

  static bool has_no_window(const Access& weight) {
    return weight.shape.size() == 4 && weight.shape[2] * weight.shape[3] == 1;
  }
  static bool lies_last(const Access& a) {
    return a.shape.size() == 4 && a.shape[1] > 1 && !has_no_window(a) &&
           same(a.shape, a.strides, channels_last(a.shape));
  }

  bool has_weight_last() const {
    for (std::size_t n = 0; n < p_.graph.nodes.size(); ++n) {
      const std::vector<Access>& reads = p_.folded.work[n].reads;  // one where an image is its own weight
      if (called(p_.graph.nodes[n]) == kFollow[0].function && reads.size() > 1 && lies_last(reads[1])) return true;
    }
    return false;
  }

  /// The strides of all that is read of that shape, where they are the same.
  std::optional<Extents> shared(const Group& group, const Extents& shape) const {
    std::optional<Extents> strides;
    for (const Load& l : group.loads) {
      if (l.access.shape != shape || !is_dense(shape, l.access.strides)) continue;
      if (strides && !same(shape, *strides, l.access.strides)) return std::nullopt;
      strides = l.access.strides;
    }
    return strides;
  }

  /// Every place that sees `n` but the nodes of its own group, if it is stored by one.
  std::vector<Access*> readers(NodeId n) {
    const int index = is_join(p_.graph[n]) ? -1 : p_.group_of[at(n)];
    std::vector<Access*> all;
    const auto add = [&](Access& a) {
      if (a.base == n) all.push_back(&a);
    };
    for (std::size_t m = 0; m < p_.graph.nodes.size(); ++m) {
      add(p_.folded.value[m]);
      if (p_.group_of[m] == index) continue;
      for (Access& a : p_.folded.work[m].reads) add(a);
    }
    for (std::size_t i = 0; i < p_.groups.size(); ++i)
      if (static_cast<int>(i) != index)
        for (Load& l : p_.groups[i].loads) add(l.access);
    return all;
  }

  void lay(NodeId n, const Extents& strides) {
    const std::vector<Access*> all = readers(n);
    std::vector<Access> changed;
    for (const Access* a : all) {
      const auto access = moved(*a, p_.computed[at(n)], strides);
      if (!access) return;
      changed.push_back(*access);
    }
    for (const NodeId part : writers_of(p_.folded, n)) {
      const Group& group = p_.groups[at(p_.group_of[at(part)])];
      if (!is_loops(group.pattern)) continue;
      Space space = space_of(group);
      const auto to = moved(part == n ? identity_access(n, p_.computed[at(n)]) : p_.folded.value[at(part)],
                            p_.computed[at(n)], strides);
      if (!to || !cut_space(space, space.spans.at(part), collapsed(*to).shape)) return;
    }
    const auto exchange = [&] {
      for (std::size_t i = 0; i < all.size(); ++i) std::swap(*all[i], changed[i]);
    };
    exchange();
    if (!is_read_by_all(n)) exchange();
  }

  /// Whether the executors of kernels that are no loops run those that read `n`: the plan asked them of C order.
  bool is_read_by_all(NodeId n) const {
    return std::ranges::all_of(p_.groups, [&](const Group& group) {
      const bool reads = std::ranges::any_of(group.loads, [n](const Load& l) { return l.access.base == n; });
      if (!reads || is_loops(group.pattern) || !group.executor) return true;
      return !group.executor->refusal(candidate_of(p_, group), device_);
    });
  }

  Plan& p_;
  const Device& device_;
  const std::vector<int> output_of_;
  const bool any_weight_last_;
};

}  // namespace

Plan with_layouts(Plan plan, const Device& device) {
  Layouts(plan, device).run();
  return plan;
}

}  // namespace kfusion
