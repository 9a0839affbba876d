// ReLU followed by LayerNorm over the last axis, on the CPU.
//   r = max(x, 0);  y = (r - mean(r)) / sqrt(var(r) + eps) [* weight] [+ bias]      (biased variance)
#pragma once
#include "kfusion/rows.hpp"

namespace kfusion::cpu {

/// One kernel: each row is read once from memory (twice where a core's cache cannot hold it) and written once.
void fused_relu_layernorm(const RowProblem& p);

/// Five kernels, eight passes over the matrix: relu (r+w), mean (r), var (r), centre (r+w), scale (r+w).
/// Matrix intermediates have x's dtype, row statistics the compute type.
void unfused_relu_layernorm(const RowProblem& p);

/// The yardstick of a kernel that reads and writes a matrix once: a threaded, prefetching copy with non-temporal
/// stores where they pay.
void copy(void* to, const void* from, std::size_t bytes);

/// Reads and writes more than the last-level cache holds, so that what follows starts cold.
void flush_cache();

}  // namespace kfusion::cpu
