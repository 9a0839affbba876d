// Runs the generated struct of a product's kernel on the host, on elements that are given: lanes, parts and tiles as
// the skeletons have them (device/contract_reduced.cuh, contract_stored.cuh).
#pragma once
#include <limits>

namespace host {

constexpr int kPairs = 32, kTile = 8 * kPairs;  // of a lane; columns of a tile

/// A lane's elements of a row in a tile; what lies beyond the last column is no number.
inline void fill(float (&acc)[4 * kPairs], int h, const float* row, int col, int cols) {
  for (float& a : acc) a = std::numeric_limits<float>::quiet_NaN();
  for (int j = 0; j < kPairs; ++j)
    for (int x = 0; x < 2; ++x)
      if (col + 8 * j + x < cols) acc[4 * j + 2 * h + x] = row[col + 8 * j + x];
}

template <class F>
void reduce(const void* parameters, const float* product, int rows, int cols, int parts) {
  const auto& p = *static_cast<const typename F::Params*>(parameters);
  const int tiles = (cols + kTile - 1) / kTile, steps = (tiles + parts - 1) / parts;
  for (int r = 0; r < rows; ++r) {
    auto all = F::none();
    for (int first = 0; first < tiles; first += steps) {
      typename F::State lane[4] = {F::none(), F::none(), F::none(), F::none()};
      for (int tile = first; tile < first + steps && tile < tiles; ++tile)
        for (int l = 0; l < 4; ++l) {
          float acc[4 * kPairs];
          const int h = r % 2, col = tile * kTile + 2 * l;
          fill(acc, h, product + std::int64_t{r} * cols, col, cols);
          const kfusion::device::Point at{0, r, col, rows, cols};
          if ((tile + 1) * kTile <= cols)
            F::template fold<true, kPairs>(lane[l], p, acc, h, at);
          else
            F::template fold<false, kPairs>(lane[l], p, acc, h, at);
        }
      F::join(lane[0], lane[1]), F::join(lane[2], lane[3]), F::join(lane[0], lane[2]);
      F::join(all, lane[0]);
    }
    F::end(all, p, 0, r);
  }
}

}  // namespace host
