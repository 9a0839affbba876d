// How a product is cut into tiles (device/contract.cuh): the candidates, and a model that chooses.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codegen/generate.hpp"

namespace kfusion::codegen {

/// The arguments of device::Tile. `group`: cluster tiles along the rows that are walked together.
struct Tile {
  int rows, cols, stages, down, across, slots;
  bool lag = false;
  int group = 8;
  bool turned = false;  ///< its rows are the product's columns, and its columns the product's rows

  int cluster() const { return down * across; }
  /// What a block asks for, with `vectors` along the columns, and `values` that are computed of each column of one of
  /// `products`: device::Shared::kBytes.
  int shared_bytes(int vectors, int values, int products) const;
  /// "Tile<bfloat16_t, 128, 256, ...>"
  std::string text(const std::string& type, bool across_a, bool across_b, bool beside, bool sums, bool apart) const;
};

/// A product as the choice of a tile depends on it.
struct TileProblem {
  std::int64_t batches, rows, cols, depth;  ///< cols: of one of `products`
  int products = 1, vectors = 0, column_values = 0;
  int operands = 0, results = 0;  ///< matrices that come and leave by boxes
  bool across_a = false;          ///< the left factor's memory runs along its rows
  bool across_b = false;          ///< the right factor's memory runs along its columns
  bool reduces = false;
  int loose = 0;                       ///< arrays of the result's size that threads load and store themselves
  std::vector<std::int64_t> beside{};  ///< columns of each of several products beside one another: `cols` is their sum
  std::vector<std::pair<std::int64_t, std::int64_t>> apart{};  ///< rows and columns of those with a left factor each

  /// Tiles of so many columns; of those beside one another each is of one of them.
  std::int64_t tiles_along(std::int64_t columns) const;
};

/// The tile that is predicted to be fastest, and the cycles that a multiprocessor takes with it.
struct ChosenTile {
  Tile tile;
  double cycles;         ///< of the clock as it is while it multiplies
  double peak_cycles;    ///< of the clock that its peak stands for
  bool waits_for_bytes;  ///< its slices take longer to arrive than to be multiplied
};
ChosenTile choose_tile(const TileProblem& p, const Target& target);

/// Number of parts that the columns are cut into where rows are reduced, so that blocks have equally much to do.
int reduced_parts(const TileProblem& p, const Tile& tile, const Target& target);

}  // namespace kfusion::codegen
