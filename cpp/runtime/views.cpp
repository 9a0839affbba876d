#include "runtime/views.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "kfusion/ops/names.hpp"

namespace kfusion {

View view_of(const Node& n, const Extents& strides) {
  View v;
  v.dtype = n.dtype;
  v.place = n.place;
  v.ndim = static_cast<int>(n.shape.size());
  std::ranges::copy(n.shape, v.shape);
  set_c_strides(v);
  const auto item = static_cast<std::int64_t>(item_bytes(n.dtype));
  for (std::size_t d = 0; d < strides.size(); ++d) v.strides[d] = strides[d] * item;
  return v;
}

Extents element_strides(const View& v) {
  Extents strides(v.strides, v.strides + v.ndim);
  for (std::int64_t& s : strides) s /= static_cast<std::int64_t>(item_bytes(v.dtype));
  return strides;
}

View shared_layout(const Node& n, const std::vector<View>& inputs) {
  std::optional<Extents> shared;
  for (const View& v : inputs) {
    if (!std::ranges::equal(n.shape, std::span(v.shape, static_cast<std::size_t>(v.ndim)))) continue;
    Extents strides = element_strides(result_layout(v));
    if (shared && *shared != strides) return view_of(n);
    shared = std::move(strides);
  }
  return view_of(n, shared.value_or(Extents{}));
}

std::vector<View> input_views(const Graph& g) {
  std::vector<View> views;
  for (const Node& n : g.nodes)
    if (n.op == Op::input) views.push_back(view_of(n, std::get<InputAttributes>(n.attributes).strides));
  return views;
}

}  // namespace kfusion
