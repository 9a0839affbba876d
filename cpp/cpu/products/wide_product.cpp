#include "cpu/products/wide_product.hpp"

#include <algorithm>
#include <cstdlib>

#include "cpu/products/piece.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/lower/schedule.hpp"

namespace kfusion::cpu {
namespace {

/// A panel of the right factor has these extents: 2 MB, beside 2 MB of the left one where a block has 512 rows.
constexpr std::int64_t kDepth = 1024, kCols = 512;
constexpr std::int64_t kItem = 4;  // of float32

/// Whole vectors.
std::int64_t panel_part(std::int64_t extent, std::int64_t most) {
  return std::min(extent, round_up(even_part(extent, most), 16));
}

std::int64_t slice(std::int64_t depth) { return panel_part(depth, kDepth); }
std::int64_t chunk(std::int64_t cols) { return panel_part(cols, kCols); }

std::int64_t panel_bytes(std::int64_t outer, std::int64_t depth) { return round_up(outer * depth * kItem, 64); }

/// Panels keep the axis innermost that is so in the factor.
bool lies_along_depth(const Side& s) { return std::abs(s.depth) <= std::abs(s.outer) || s.depth == 1; }

/// Appends an axis, or makes the one before it longer.
void append_axis(Kernel& k, Operand& from, Operand& to, std::int64_t extent, std::int64_t stride, std::int64_t dense) {
  if (extent == 1) return;
  const bool merges = !k.kept.empty() && from.kept.back() == stride * extent && to.kept.back() == dense * extent;
  if (merges) {
    k.kept.back() *= extent, from.kept.back() = stride, to.kept.back() = dense;
    return;
  }
  k.kept.push_back(extent), from.kept.push_back(stride), to.kept.push_back(dense);
}

LoopKernel converting(const Side& s, std::int64_t outer, std::int64_t depth) {
  Kernel k;
  Operand from, to;
  from.dtype = s.dtype;
  if (lies_along_depth(s)) {
    append_axis(k, from, to, outer, s.outer, depth);
    append_axis(k, from, to, depth, s.depth, 1);
  } else {
    append_axis(k, from, to, depth, s.depth, outer);
    append_axis(k, from, to, outer, s.outer, 1);
  }
  Step load;
  load.dtype = load.from = s.dtype, load.index = 0;
  k.name = "panel", k.loads = {from}, k.steps = {load}, k.stores = {{0, to}};
  set_schedule(k);
  return LoopKernel(k);
}

std::int64_t item_of(const Side& s) { return static_cast<std::int64_t>(item_bytes(s.dtype)); }

}  // namespace

void Panels::add(std::int64_t outer, std::int64_t depth) {
  if (are_needed() && !kernels_.contains({outer, depth}))
    kernels_.emplace(std::pair{outer, depth}, converting(side_, outer, depth));
}

void Panels::compile() const {
  for (const auto& [extents, kernel] : kernels_) kernel.compile(false);
}

Matrix Panels::converted(const Matrix& from, std::int64_t outer, std::int64_t depth, std::byte* to) const {
  if (!are_needed()) return from;
  kernels_.at({outer, depth}).run_part(&from.data, &to, nullptr, false);
  return lies_along_depth(side_) ? Matrix{to, depth, 1} : Matrix{to, 1, outer};
}

WideProduct::WideProduct(const Side& left, const Side& right, const std::vector<std::int64_t>& rows,
                         const std::vector<std::int64_t>& cols, const std::vector<std::int64_t>& depths)
    : left_(left), right_(right), left_item_(item_of(left)), right_item_(item_of(right)) {
  for (const std::int64_t all : depths) {
    if (all == 0) continue;
    for (const std::int64_t depth : block_extents(all, slice(all))) {
      for (const std::int64_t n : rows) {
        left_.add(n, depth);
        if (left_.are_needed()) left_bytes_ = std::max(left_bytes_, panel_bytes(n, depth));
      }
      for (const std::int64_t block : cols)
        for (const std::int64_t n : block_extents(block, chunk(block))) {
          right_.add(n, depth);
          if (right_.are_needed()) right_bytes_ = std::max(right_bytes_, panel_bytes(n, depth));
        }
    }
  }
}

void WideProduct::multiply(const Blas& blas, std::int64_t rows, std::int64_t cols, std::int64_t depth,
                           const Matrix& left, const Matrix& right, std::byte* result, std::int64_t pitch,
                           std::byte* scratch) const {
  for (std::int64_t d = 0, n; d < depth; d += n) {
    n = std::min(slice(depth), depth - d);
    const Matrix from{left.data + d * left.depth * left_item_, left.outer, left.depth};
    const Matrix a = left_.converted(from, rows, n, scratch);
    for (std::int64_t c = 0, width; c < cols; c += width) {
      width = std::min(chunk(cols), cols - c);
      const Matrix part{right.data + (d * right.depth + c * right.outer) * right_item_, right.outer, right.depth};
      const Matrix b = right_.converted(part, width, n, scratch + left_bytes_);
      blas.multiply(DType::kFloat32, rows, width, n, a, b, result + c * kItem, pitch, d > 0);
    }
  }
}

std::size_t scratch_bytes(const std::vector<WideProduct>& products) {
  std::size_t most = 0;
  for (const WideProduct& p : products) most = std::max(most, p.scratch_bytes());
  return most;
}

}  // namespace kfusion::cpu
