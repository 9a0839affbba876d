// From attention (kfusion/lower/attention.hpp) to CUDA C++ for tensor cores, its launch, its parameter.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "codegen/contractions/contraction_kernel.hpp"
#include "codegen/generate.hpp"
#include "kfusion/lower/attention.hpp"
#include "kfusion/lower/visible.hpp"

namespace kfusion::codegen {

/// The arguments of device::AttentionTile, and into how many parts the keys are cut.
struct AttentionCut {
  int depth, values, keys, stages, groups, parts;
  bool operand = false;  ///< a matrix of the scores' shape comes by boxes

  int rows() const { return 64 * groups; }
  /// device::AttentionTile::kBytes.
  int shared_bytes() const;
  std::string text(const std::string& type) const;
};

/// `plain`: scores that are products, but for factors and masks of positions. Without epilogues, as attention_of gives.
AttentionCut attention_cut(const Attention& a, bool plain, bool operand, const Target& target);

/// Why no such kernel computes it, as a clause about an executor; nothing where one does.
std::optional<std::string> why_no_attention_kernel(const Candidate& kernel);

/// Where a launch's arrays lie, as CudaKernel has them.
struct AttentionAddresses {
  const std::byte *queries, *keys, *values;
  const std::byte* const* score_loads;  ///< of products' elements anything
  const std::byte* const* output_loads;
  std::byte* const* stores;
};

class AttentionKernel {
 public:
  /// `aligned`: all arrays of the caller begin at multiples of 16 bytes. Queries, keys and values have to.
  AttentionKernel(const Attention& a, const Target& target, bool aligned);

  const std::string& source() const { return source_; }
  const std::string& entry() const { return entry_; }
  /// What the copy engine brings: queries, keys, values, what scores read by boxes.
  const std::array<BoxedMatrix, 4>& matrices() const { return matrices_; }
  const Launch& launch() const { return launch_; }
  const AttentionCut& cut() const { return cut_; }
  const std::vector<KeyBound>& bounds() const { return bounds_; }  ///< of the keys that a query sees

  std::size_t parameter_bytes() const { return bytes_; }
  std::size_t scores_offset() const;  ///< of the parameters of the struct Scores
  /// Writes what CudaKernel::write_parameters does.
  void write_parameters(const AttentionAddresses& a, const double* parameters, const Memory& memory,
                        const EncodeMatrix& encode, std::byte* to) const;

 private:
  void set_launch(const Attention& a, const Target& target);
  void set_numbers(const Attention& a);

  std::string source_, entry_;
  Launch launch_;
  AttentionCut cut_{};
  std::vector<KeyBound> bounds_;
  std::array<BoxedMatrix, 4> matrices_;
  std::vector<std::int64_t> result_strides_;
  std::int64_t result_offset_bytes_ = 0;
  int operand_ = -1;  ///< the load of the scores that comes by boxes
  int result_ = -1;   ///< the store that leaves by 16 bytes
  std::vector<std::int32_t> numbers_;
  std::vector<Cell> score_cells_, output_cells_;
  std::vector<Constant> score_constants_, output_constants_;
  std::size_t bytes_ = 0;
};

/// Removes names, as without_names() of a kernel does (generate.hpp).
Attention without_names(Attention a);

}  // namespace kfusion::codegen
