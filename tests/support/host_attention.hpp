// Runs the generated struct of attention's scores on the host, on elements of the product that are given: lanes as the
// skeleton has them (device/attention.cuh).
#pragma once
#include "host_products.hpp"

namespace host {

/// What F::map and F::factor make of the elements of each row.
template <class F>
void score(const void* parameters, const float* product, float* scores, const int (&batches)[3], int rows, int cols) {
  const auto& p = *static_cast<const typename F::Params*>(parameters);
  const int lines = batches[0] * batches[1] * batches[2] * rows;
  for (int line = 0; line < lines; ++line, product += cols, scores += cols) {
    const int r = line % rows, batch = line / rows, h = r % 2;
    for (int col = 0; col < cols; col += 2) {
      if (col % kTile >= 8) continue;  // of another lane's first column
      float s[4 * kPairs];
      const kfusion::device::Query at{
          {batch / batches[2] / batches[1], batch / batches[2] % batches[1], batch % batches[2]}, r, col, rows, cols};
      fill(s, h, product, col, cols);
      for (int j = 0; j < kPairs; j += 2)
        F::template map<true>(p, F::row(p, at), s, h, j, kfusion::device::Pairs{}, at);
      for (int j = 0; j < kPairs; ++j)
        for (int x = 0; x < 2; ++x)
          if (const int c = col + 8 * j + x; c < cols) scores[c] = s[4 * j + 2 * h + x] * F::template factor<true>(p);
    }
  }
}

}  // namespace host
