#include "kfusion/plan/views/domain.hpp"

#include <algorithm>
#include <bit>

namespace kfusion {

Extents extents_of(const Extents& domain, Axes axes) {
  Extents r;
  for (std::size_t i = 0; i < domain.size(); ++i) {
    if (axes & axis_bit(i)) r.push_back(domain[i]);
  }
  return r;
}

Extents without_ones(const Extents& shape) {
  Extents r;
  for (const std::int64_t e : shape) {
    if (e > 1) r.push_back(e);
  }
  return r;
}

std::optional<Refinement> refine(const Extents& a, const Extents& b) {
  Refinement r{{}, Few<int, 4>(a.size(), 0), Few<int, 4>(b.size(), 0)};
  std::size_t i = a.size(), j = b.size();
  std::int64_t left_a = 1, left_b = 1;
  while (true) {
    if (left_a == 1 && i > 0) left_a = a[--i];
    if (left_b == 1 && j > 0) left_b = b[--j];
    if (left_a == 1 && left_b == 1) break;
    const std::int64_t factor = std::min(left_a, left_b);
    if (factor == 1 || std::max(left_a, left_b) % factor != 0) return std::nullopt;
    r.extents.push_back(factor);
    ++r.pieces_a[i];
    ++r.pieces_b[j];
    left_a /= factor;
    left_b /= factor;
  }
  std::reverse(r.extents.begin(), r.extents.end());
  return r;
}

std::optional<Cut> cut(const Extents& domain, Axes axes, const Few<int, 4>& pieces, const Extents& extents) {
  Cut r;
  std::size_t axis = 0, next = 0;
  for (std::size_t i = 0; i < domain.size(); ++i) {
    const bool is_cut = axes & axis_bit(i);
    const int n = is_cut ? pieces[axis++] : 1;
    if (r.domain.size() + static_cast<std::size_t>(n) > kMaxDims) return std::nullopt;
    Axes moved = 0;
    for (int k = 0; k < n; ++k) {
      moved |= axis_bit(r.domain.size());
      r.domain.push_back(is_cut ? extents[next++] : domain[i]);
    }
    r.moved.push_back(moved);
  }
  return r;
}

Axes moved_axes(const MovedAxes& moved, Axes axes) {
  Axes r = 0;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    if (axes & axis_bit(i)) r |= moved[i];
  }
  return r;
}

std::optional<Axes> span_of(const Access& a, const Extents& domain, Axes span) {
  Access plain = a;
  for (std::int64_t& e : plain.shape) e = std::max<std::int64_t>(e, 1);
  const Extents extents = extents_of(domain, span);
  if (a.offset != 0 || product(plain.shape) != product(extents)) return std::nullopt;
  const auto seen = reshaped(plain, extents);
  if (!seen) return std::nullopt;
  Axes varies = 0;
  std::int64_t stride = 1;
  for (std::size_t i = domain.size(), k = extents.size(); i-- > 0;) {
    if (!(span & axis_bit(i)) || seen->strides[--k] == 0) continue;
    if (seen->strides[k] != stride) return std::nullopt;
    varies |= axis_bit(i);
    stride *= extents[k];
  }
  return a.base_size == 0 || stride == a.base_size ? std::optional(varies) : std::nullopt;
}

bool picks(const Access& taken, const Extents& domain, Axes reduced) {
  const Access points = identity_access(taken.base, domain);
  Access rows{taken.base, taken.base_size, {}, {}};
  std::int64_t step = 0;
  for (std::size_t i = 0; i < domain.size(); ++i) {
    if (reduced & axis_bit(i)) {
      step = points.strides[i];
    } else {
      rows.shape.push_back(domain[i]);
      rows.strides.push_back(points.strides[i]);
    }
  }
  const std::int64_t row = product(extents_of(domain, reduced));
  const Axes run = reduced == 0 ? 0 : reduced >> std::countr_zero(reduced);
  if ((run & (run + 1)) != 0 || !taken.has_positions() || taken.offset != 0) return false;
  if (taken.positions != row || (row > 1 && taken.step != step) || taken.base_size != product(domain)) return false;
  Access plain = taken;
  plain.positions = Access::kNoPositions, plain.step = 0;
  const auto seen = product(plain.shape) == product(rows.shape) ? reshaped(plain, rows.shape) : std::nullopt;
  return seen && collapsed(*seen) == collapsed(rows);
}

}  // namespace kfusion
