#include "kfusion/view.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "kfusion/error.hpp"

namespace kfusion {
namespace {

using Axes = int[kMaxDims];

/// The axes of extent > 1, by falling |stride|; returns how many. The order of equal strides is the given one.
int axes_outermost_first(const View& v, Axes& axes) {
  int n = 0;
  for (int d = 0; d < v.ndim; ++d)
    if (v.shape[d] != 1) axes[n++] = d;
  std::stable_sort(axes, axes + n, [&](int a, int b) { return std::abs(v.strides[a]) > std::abs(v.strides[b]); });
  return n;
}

struct Range {  // [begin, end) in bytes
  std::int64_t begin, end;
};

/// The addresses between the first and the last byte of a view that is not empty, axes with strides that are multiples
/// of `pitch` left out (0: none is).
Range address_range(const View& v, std::int64_t pitch) {
  Range r{reinterpret_cast<std::intptr_t>(v.data), reinterpret_cast<std::intptr_t>(v.data)};
  for (int d = 0; d < v.ndim; ++d) {
    if (v.shape[d] == 1 || (pitch && v.strides[d] % pitch == 0)) continue;
    (v.strides[d] < 0 ? r.begin : r.end) += (v.shape[d] - 1) * v.strides[d];
  }
  r.end += static_cast<std::int64_t>(item_bytes(v.dtype));
  return r;
}

/// True if no address of `a` is congruent to one of `b` modulo `pitch`, as for two column blocks of one matrix.
bool disjoint_modulo(const View& a, const View& b, std::int64_t pitch) {
  const Range ra = address_range(a, pitch), rb = address_range(b, pitch);
  const std::int64_t gap = ((rb.begin - ra.begin) % pitch + pitch) % pitch;  // where b begins, counted from a's begin
  return gap >= ra.end - ra.begin && gap + (rb.end - rb.begin) <= pitch;
}

bool same_layout(const View& a, const View& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int d = 0; d < a.ndim; ++d)
    if (a.shape[d] != b.shape[d] || (a.shape[d] != 1 && a.strides[d] != b.strides[d])) return false;
  return true;
}

}  // namespace

std::string to_string(Place p) { return p.on_host() ? "cpu" : "cuda:" + std::to_string(p.index); }

std::optional<Place> place_named(std::string_view text) {
  if (text == "cpu") return Place{};
  if (!text.starts_with("cuda:")) return std::nullopt;
  Place p{PlaceKind::kCuda, 0};
  const auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), p.index);
  if (error != std::errc{} || to_string(p) != text || p.index < 0) return std::nullopt;
  return p;
}

std::int64_t View::size() const {
  for (int d = 0; d < ndim; ++d)
    if (shape[d] == 0) return 0;
  std::int64_t n = 1;
  for (int d = 0; d < ndim; ++d)
    if (__builtin_mul_overflow(n, shape[d], &n))
      throw ValueError("kfusion: an array of shape " + shape_text(ndim, shape) + " has more than 2^63 - 1 elements");
  return n;
}

std::int64_t View::nbytes() const {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(size(), static_cast<std::int64_t>(item_bytes(dtype)), &bytes))
    throw ValueError("kfusion: an array of shape " + shape_text(ndim, shape) + " has more than 2^63 - 1 bytes");
  return bytes;
}

std::string shape_text(int ndim, const std::int64_t* shape) {
  std::string text = "(";
  for (int d = 0; d < ndim; ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + (ndim == 1 ? ",)" : ")");
}

void set_c_strides(View& v) {
  const bool empty = v.nbytes() == 0;  // then any strides do, and the extents may multiply beyond 64 bits
  std::int64_t step = static_cast<std::int64_t>(item_bytes(v.dtype));
  for (int d = v.ndim - 1; d >= 0; --d) {
    v.strides[d] = step;
    if (!empty) step *= v.shape[d];
  }
}

View result_layout(const View& v) {
  View layout = v;
  layout.data = nullptr;
  layout.read_only = false;
  set_c_strides(layout);

  if (v.size() == 0) return layout;

  Axes axes;
  const int n = axes_outermost_first(v, axes);
  std::int64_t step = static_cast<std::int64_t>(item_bytes(v.dtype));
  for (int k = n - 1; k >= 0; --k) {
    if (v.strides[axes[k]] != step) return layout;
    step *= v.shape[axes[k]];
  }
  for (int k = 0; k < n; ++k) layout.strides[axes[k]] = v.strides[axes[k]];
  return layout;
}

bool is_c_contiguous(const View& v) {
  std::int64_t step = static_cast<std::int64_t>(item_bytes(v.dtype));
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (v.shape[d] == 0) return true;
    if (v.shape[d] != 1 && v.strides[d] != step) return false;
    step *= v.shape[d];
  }
  return true;
}

bool self_overlapping(const View& v) {
  if (v.size() == 0) return false;
  Axes axes;
  std::int64_t span = static_cast<std::int64_t>(item_bytes(v.dtype));
  for (int k = axes_outermost_first(v, axes) - 1; k >= 0; --k) {
    const std::int64_t stride = std::abs(v.strides[axes[k]]);
    if (stride < span) return true;
    span += (v.shape[axes[k]] - 1) * stride;
  }
  return false;
}

Overlap overlap(const View& x, const View& out) {
  if (x.place != out.place || x.size() == 0 || out.size() == 0) return Overlap::kNone;
  const Range a = address_range(x, 0), b = address_range(out, 0);
  if (a.end <= b.begin || b.end <= a.begin) return Overlap::kNone;
  if (same_layout(x, out)) return Overlap::kSame;
  for (const View* v : {&x, &out})
    for (int d = 0; d < v->ndim; ++d)
      if (v->shape[d] != 1 && v->strides[d] != 0 && disjoint_modulo(x, out, std::abs(v->strides[d])))
        return Overlap::kNone;
  return Overlap::kOther;
}

}  // namespace kfusion
