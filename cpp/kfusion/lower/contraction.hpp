// A group around matrix products, for executors that compute a product and what follows it in one kernel:
//
//   for each of `batches`: P_i = left_i right_i   (rows x depth by depth x cols), for each of the products
//   the steps of `epilogue` on every element, whose loads are the products' elements and other arrays;
//   where it reduces, along all rows or all columns of each batch, row steps on what is left
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// A factor of a product: an element lies at offset + batch x its index + outer x (row or column) + depth x its index,
/// in elements.
struct Factor {
  NodeId node = 0;
  DType dtype = DType::kFloat32;
  std::int64_t offset = 0, batch = 0, outer = 0, depth = 0;
  Extents batch_strides{};  ///< along Contraction::batch_axes; `batch` is the last of them

  bool operator==(const Factor&) const = default;
};

struct Product {
  NodeId node = 0;
  DType dtype = DType::kFloat32;  ///< of the result, as the graph has it
  Factor left, right;
};

/// Over which axis of the products an epilogue reduces.
enum class Reduces : std::uint8_t { kNothing, kRows, kCols };

struct Contraction {
  std::int64_t batches = 1, rows = 1, cols = 1, depth = 1;
  Extents batch_axes = {1};       ///< one axis, {batches}, but for what BatchAxes says
  std::vector<Product> products;  ///< of one shape; each an argument of the epilogue
  Reduces reduces = Reduces::kNothing;

  /// kPointwise with `kept` = {batches, rows, cols}, or kRows with {batches, cols} and {rows}, or {batches, rows} and
  /// {cols}: all of them, also those of 1. In the place of `batches` stand the batch axes. Reductions stand where
  /// monotone maps before them commute with them (Group::deferred): these are row steps.
  Kernel epilogue;

  /// FLOPs of one of the products.
  double flops() const { return 2.0 * static_cast<double>(batches * rows) * static_cast<double>(cols * depth); }

  /// The product that a load of the epilogue is the elements of; -1 where it is an array.
  int product_of(const Operand& load) const;
};

/// Sums of columns (Store::parts) of what store `from` of an epilogue stores, as loops of their own: for a kernel that
/// leaves them to another one. One load and one store.
Kernel sums_of_columns(const Contraction& c, int from, int to);

/// How batches are seen: along one axis, as strides have to have it (those of images and heads often do not); else,
/// where that is not possible, as the product has its leading axes; always so.
enum class BatchAxes : std::uint8_t { kOne, kAny, kLeading };

/// The axes and the products of a kernel that may be a Contraction: all but its epilogue.
std::optional<Contraction> products_of(const Candidate& kernel, BatchAxes axes = BatchAxes::kOne);

/// What an executor can do beyond what all of them can.
struct ContractionAbilities {
  bool tables = false;            ///< takes elements of arrays at positions, one for each row (Kernel::tables)
  bool variances = false;         ///< pairs of kind kCentred
  bool positions = false;         ///< pairs of kind kFound
  std::int64_t rows_of_sums = 0;  ///< sums the columns of parts of so many rows (Op::partial_sums); 0: no sums
  bool lost_picks = false;        ///< an index that means no element of its row gives NaN; else that would be an error
  BatchAxes batches = BatchAxes::kOne;
};

/// Why a kernel is no Contraction for such an executor, as a clause about it ("takes ..."); nothing where it is one.
std::optional<std::string> why_no_contraction(const Candidate& kernel, const ContractionAbilities& can = {});

}  // namespace kfusion
