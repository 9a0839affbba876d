// From a group around a product (kfusion/lower/contraction.hpp) to CUDA C++ for tensor cores, its launch, its
// parameter.
#pragma once
#include <functional>

#include "codegen/contractions/tile.hpp"
#include "codegen/generate.hpp"
#include "kfusion/lower/beside.hpp"

namespace kfusion::codegen {

constexpr std::size_t kMostBeside = 4;  ///< products of one kernel beside one another
constexpr std::size_t kMostBoxes = 2;   ///< at a place of a tile: of matrices that come, and of results

/// A matrix, or batches of them, as the copy engine is told of it: a CUtensorMap of half types of `axes` axes, the
/// innermost first.
struct BoxedMatrix {
  enum class Of : std::uint8_t { kNothing, kLeft, kRight, kLoad, kStore };
  Of of = Of::kNothing;
  int index = 0;  ///< of the product, the load or the store, among those of all contractions
  std::int64_t offset_bytes = 0;
  int axes = 3;
  std::int64_t sizes[5] = {1, 1, 1, 1, 1};
  std::int64_t strides_bytes[4] = {0, 0, 0, 0};  ///< of the second axis and those after it
  int box[2] = {1, 1};                           ///< elements of the first two axes
  int swizzle_bytes = 0;                         ///< 0, 64 or 128
  bool is_bfloat16 = true;
};

/// Where a launch's arrays lie, as CudaKernel has them; factors by product. With contractions beside one another, those
/// of the first come first.
struct ContractionAddresses {
  const std::byte* const* left;
  const std::byte* const* right;
  const std::byte* const* loads;  ///< of products' elements anything
  std::byte* const* stores;
};

/// Writes the 128 bytes of the matrix, which begins at `address`, to `to`.
using EncodeMatrix = std::function<void(const BoxedMatrix&, const std::byte* address, std::byte* to)>;

/// Why no such kernel computes it, as a clause about an executor; nothing where one does. Products are of half types,
/// whose factors begin at multiples of 16 bytes and have strides of that kind.
std::optional<std::string> why_no_tensor_core_kernel(const Candidate& kernel);

/// Arrays of a result's size that an epilogue reads and stores: by boxes, and otherwise.
struct EpilogueArrays {
  int operands = 0, results = 0, loose = 0;
};

/// The tile of a kernel that is not made yet, of which the products are known only, one or several beside one another,
/// and what else it moves.
ChosenTile predicted_tile(const std::vector<Contraction>& products, const EpilogueArrays& moved, const Target& target);

/// Removes names, as without_names() of a kernel does (generate.hpp).
Contraction without_names(Contraction c);
std::vector<Contraction> without_names(std::vector<Contraction> all);

class ContractionKernel {
 public:
  /// `aligned`: all arrays of the caller begin at multiples of 16 bytes, so that boxes may be used for what the
  /// epilogue reads and stores. Factors have to.
  ContractionKernel(const Contraction& c, const Target& target, bool aligned)
      : ContractionKernel(std::vector<Contraction>{c}, target, aligned) {}
  /// A kernel of several beside one another, where why_no_tensor_core_kernel() gives no reason against it.
  ContractionKernel(const std::vector<Contraction>& beside, const Target& target, bool aligned);

  const std::string& source() const { return source_; }
  const std::string& entry() const { return entry_; }
  const Launch& launch() const { return launch_; }
  const Tile& tile() const { return tile_; }

  /// Sums of columns of parts of the rows (Store::parts) that this kernel leaves to another one, which reads what this
  /// one stored: stores of the only contraction.
  struct Sums {
    int from, to;
  };
  const std::vector<Sums>& sums_apart() const { return sums_apart_; }

  /// What the copy engine brings and takes away, in the order of device::Contraction.
  const std::vector<BoxedMatrix>& matrices() const { return matrices_; }

  std::size_t parameter_bytes() const { return bytes_; }
  /// Where the generated struct's own parameters begin among them.
  std::size_t epilogue_offset() const;
  /// Writes what CudaKernel::write_parameters does.
  void write_parameters(const ContractionAddresses& a, const double* parameters, const Memory& memory,
                        const EncodeMatrix& encode, std::byte* to) const;

 private:
  /// What is the contraction's own.
  struct Epilogue {
    std::vector<Cell> cells;
    std::vector<Constant> constants;
    std::size_t first_load = 0, first_store = 0;
  };
  class Maker;

  std::string source_, entry_;
  Launch launch_;
  Tile tile_{};
  std::vector<BoxedMatrix> matrices_;
  std::vector<std::int32_t> numbers_;
  std::vector<Epilogue> epilogues_;
  std::vector<Sums> sums_apart_;
  std::size_t bytes_ = 0;
};

}  // namespace kfusion::codegen
