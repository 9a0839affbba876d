// A part of a product's elements, with the steps on them: kernels of loops, cut out of a Contraction.
#pragma once
#include <vector>

#include "cpu/loops/loop_kernel.hpp"
#include "kfusion/lower/contraction.hpp"

namespace kfusion::cpu {

/// Along the axes of a Contraction.
struct Block {
  std::int64_t batches = 1, rows = 1, cols = 1;

  std::int64_t size() const { return batches * rows * cols; }
  bool operator==(const Block&) const = default;
};

/// The extents that blocks of `step` have along an axis: that, and what is left at the end.
std::vector<std::int64_t> block_extents(std::int64_t extent, std::int64_t step);

/// A job (job.hpp) that takes as long as so many operations of products.
std::int64_t bytes_for_flops(double flops);

/// What an operand of a Piece is.
struct Given {
  enum class Kind : std::uint8_t {
    kArray,    ///< load or store `index` of the epilogue
    kProduct,  ///< the elements of product `index`, as `held`: rows of all batches of the block, as many elements as it
               ///< has columns
    kPartial   ///< what each part of a reduced axis leaves of reduction `index`: a row of them for each part
  };
  Kind kind = Kind::kArray;
  int index = 0;
  Extents batches{};              ///< kArray: strides in bytes along the batches' axes,
  std::int64_t row = 0, col = 0;  ///< rows and columns
};

/// Where batch number `index` of some axes begins, from strides along them.
std::int64_t batch_offset(std::int64_t index, const Extents& axes, const Extents& strides);

/// The loops over one block.
struct Piece {
  Extents batch_axes;
  LoopKernel kernel;
  std::vector<Given> loads, stores;
};

/// The epilogue on a block that has all of what is reduced.
Piece whole_piece(const Contraction& c, const Block& block);

/// The reductions of a block that has a part of what is reduced.
Piece partial_piece(const Contraction& c, const Block& block);

/// The piece from the partial results of `parts` blocks to the stores; `block`: as that of each part.
Piece combining_piece(const Contraction& c, const Block& block, std::int64_t parts);

/// Attention's scores (lower/attention.hpp) on a block of queries and keys: products 0 and 1 are the scores' products
/// and the exponentials, which it stores; partial results 0 and 1 are the largest score of each query and the
/// sum of exponentials, of score - largest. Where all scores are -inf, exponentials are 0.
Piece weights_piece(const Contraction& c, const Block& block);

/// Reductions that leave something of each part, in the order of Given::index; with the dtype that it has.
std::vector<DType> partial_types(const Contraction& c);

/// Where the operands of a piece lie: `loads` and `stores` are those of the epilogue, for the block at the origin.
struct Places {
  const std::byte* const* loads;
  std::byte* const* stores;
  std::byte* const* products;
  std::byte* const* partials;
  const double* parameters;
};

struct Origin {
  std::int64_t batch, row, col;
};

/// On the caller's thread, for the block that begins there.
void run_piece(const Piece& piece, const Places& places, const Origin& origin, bool stream);

}  // namespace kfusion::cpu
