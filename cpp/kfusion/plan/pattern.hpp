// What a kernel computes, whoever runs it.
#pragma once
#include <cstdint>
#include <string_view>

namespace kfusion {

enum class Pattern : std::uint8_t {
  kPointwise,      ///< maps over one domain
  kRows,           ///< reductions over the innermost axes of the domain, and maps
  kColumns,        ///< reductions over strided axes, and maps
  kFullReduction,  ///< a reduction of everything, finished in the same launch
  kMatmul,         ///< with prologue folded views and epilogue maps
  kConv2d,
  kAttention,             ///< softmax(q k^T) v, an online reduction
  kContractionReduction,  ///< a contraction whose result is reduced where it is made (the SPLADE head, matmul + max)
  kLibraryCall,           ///< whatever a function of the array library computes
  kCopy,                  ///< a reshape that no strides express
};
inline constexpr int kPatterns = static_cast<int>(Pattern::kCopy) + 1;

std::string_view name(Pattern p);  ///< "pointwise", "rows", ...

/// Whether it is loops over a domain, which `lower` makes a kernel of.
constexpr bool is_loops(Pattern p) { return p <= Pattern::kFullReduction || p == Pattern::kCopy; }

}  // namespace kfusion
