#include "kfusion/reference/contraction.hpp"

#include <algorithm>

#include "kfusion/reference/elements.hpp"

namespace kfusion::reference {
namespace {

/// function.operator()<t>() for the t that is `dtype`, one of those that values are held in.
template <class Function>
void for_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat64:
      return function.template operator()<double>();
    case DType::kBool:
      return function.template operator()<std::uint8_t>();
    case DType::kInt32:
      return function.template operator()<std::int32_t>();
    case DType::kInt64:
      return function.template operator()<std::int64_t>();
    default:
      return function.template operator()<float>();
  }
}

/// What products of T are summed in. Bools count in int64, and any product makes a true sum.
template <class T>
using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;

template <class T>
using Sums = std::vector<Accumulator<T>>;

/// sums[j] += x * row[j]
template <class T>
void add_products(Accumulator<T>* sums, std::int64_t n, Accumulator<T> x, const std::byte* row, std::int64_t stride) {
  if (stride == sizeof(T)) {  // a constant stride is several times as fast
    for (std::int64_t j = 0; j < n; ++j) sums[j] += x * load<T>(row + j * static_cast<std::int64_t>(sizeof(T)));
  } else {
    for (std::int64_t j = 0; j < n; ++j) sums[j] += x * load<T>(row + j * stride);
  }
}

template <class T>
void store_sums(std::byte* to, const Sums<T>& sums) {
  for (std::size_t j = 0; j < sums.size(); ++j) store(to + j * sizeof(T), convert<T>(sums[j]));
}

/// Extents of the last two axes, strides of the matrices (the result's rows are dense).
struct Matmul {
  std::int64_t rows, inner, cols, a_row, a_col, b_row, b_col;
};

template <class T>
void multiply(const Matmul& m, std::byte* to, const std::byte* a, const std::byte* b, Sums<T>& sums) {
  for (std::int64_t i = 0; i < m.rows; ++i) {
    std::ranges::fill(sums, 0);
    for (std::int64_t k = 0; k < m.inner; ++k)
      add_products<T>(sums.data(), m.cols, load<T>(a + i * m.a_row + k * m.a_col), b + k * m.b_row, m.b_col);
    store_sums<T>(to + i * m.cols * static_cast<std::int64_t>(sizeof(T)), sums);
  }
}

/// Strides of the leading axes as the result's have them.
Extents batch_strides(const Value& v, const Extents& batch) {
  Access a = v.access;
  a.shape.resize(a.shape.size() - 2);
  a.strides.resize(a.shape.size());
  return broadcast_to(a, batch).strides;
}

/// Where [0, n) * step + from lies within [0, extent).
struct Range {
  std::int64_t begin, end;
};
Range inside(std::int64_t from, std::int64_t step, std::int64_t n, std::int64_t extent) {
  const auto first_at_least = [&](std::int64_t bound) {  // the first i with from + i * step >= bound
    return bound <= from ? 0 : std::min(n, (bound - from + step - 1) / step);
  };
  return {first_at_least(0), first_at_least(extent)};
}

/// Adds to a row of results what one channel and one row of the window give.
struct Conv2dRow {
  const Value &x, &w;
  const Conv2dAttributes& a;
  std::int64_t cols;

  template <class T>
  void add(Sums<T>& sums, const std::byte* x_row, const std::byte* w_row) const {
    const Extents &xs = x.access.strides, &ws = w.access.strides;
    for (std::int64_t s = 0; s < w.access.shape[3]; ++s) {
      const std::int64_t from = s * a.dilation[1] - a.padding[1];
      const Range r = inside(from, a.stride[1], cols, x.access.shape[3]);
      if (r.begin < r.end)
        add_products<T>(sums.data() + r.begin, r.end - r.begin, load<T>(w_row + s * ws[3]),
                        x_row + (from + r.begin * a.stride[1]) * xs[3], a.stride[1] * xs[3]);
    }
  }
};

/// One row of results: image n, output channel o, output row y.
template <class T>
void convolve_row(const Conv2dRow& row, std::int64_t n, std::int64_t o, std::int64_t y, Sums<T>& sums) {
  const Access &x = row.x.access, &w = row.w.access;
  const std::int64_t channels = w.shape[1], first = o / (w.shape[0] / row.a.groups) * channels;
  const std::int64_t top = y * row.a.stride[0] - row.a.padding[0];
  std::ranges::fill(sums, 0);
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t r = 0; r < w.shape[2]; ++r) {
      const std::int64_t line = top + r * row.a.dilation[0];
      if (line < 0 || line >= x.shape[2]) continue;
      row.add<T>(sums, row.x.first() + n * x.strides[0] + (first + c) * x.strides[1] + line * x.strides[2],
                 row.w.first() + o * w.strides[0] + c * w.strides[1] + r * w.strides[2]);
    }
  }
}

template <class T>
void convolve(const Conv2dRow& row, const Value& result) {
  const Access& r = result.access;
  Sums<T> sums(static_cast<std::size_t>(r.shape[3]));
  for (std::int64_t n = 0; n < r.shape[0]; ++n)
    for (std::int64_t o = 0; o < r.shape[1]; ++o)
      for (std::int64_t y = 0; y < r.shape[2]; ++y) {
        convolve_row<T>(row, n, o, y, sums);
        store_sums<T>(result.first() + n * r.strides[0] + o * r.strides[1] + y * r.strides[2], sums);
      }
}

}  // namespace

Value matmul(const Value& a, const Value& b, const Extents& shape) {
  Value result = make_value(a.dtype, shape);
  const bool dense_rows = b.access.strides.back() == static_cast<std::int64_t>(item_bytes(b.dtype));
  const Value right = dense_rows ? b : converted(b, b.dtype);
  const Extents batch(shape.begin(), shape.end() - 2);
  const Walk walk(batch, {batch_strides(result, batch), batch_strides(a, batch), batch_strides(right, batch)});
  const auto a_strides = a.access.strides.end(), b_strides = right.access.strides.end();
  const Matmul m{shape.end()[-2], a.access.shape.back(), shape.back(), a_strides[-2],
                 a_strides[-1],   b_strides[-2],         b_strides[-1]};
  for_type(a.dtype, [&]<class T>() {
    Sums<T> sums(static_cast<std::size_t>(m.cols));
    const auto run = [&](std::int64_t n, const Pointers& p, const Strides& s) {
      for (std::int64_t i = 0; i < n; ++i) multiply<T>(m, p[0] + i * s[0], p[1] + i * s[1], p[2] + i * s[2], sums);
    };
    walk({result.first(), a.first(), right.first()}, run);
  });
  return result;
}

Value conv2d(const Value& x, const Value& w, const Conv2dAttributes& attributes, const Extents& shape) {
  const Value result = make_value(x.dtype, shape);
  const Conv2dRow row{x, w, attributes, shape[3]};
  x.dtype == DType::kFloat64 ? convolve<double>(row, result) : convolve<float>(row, result);
  return result;
}

}  // namespace kfusion::reference
