// softmax(q k^T) v, for executors that take it by blocks of queries and keys with an online softmax.
#pragma once
#include <optional>
#include <string>

#include "kfusion/lower/contraction.hpp"

namespace kfusion {

/// Two contractions over the same batches and rows (queries).
///
/// `scores`: q k^T, whose columns are keys, and the steps up to the weights. Its epilogue reduces columns: its stores
/// are steps without arrays, the maximum of a row's scores and the sum of exp(score - maximum), of Kernel::pairs[0].
/// `output`: the product of the weights, which no array holds (Factor::node is theirs), with the values; and what
/// follows it. Its depth is the scores' columns.
struct Attention {
  Contraction scores, output;
};

/// Why a kernel of Pattern::kAttention is none that is lowered so, as a clause about an executor; nothing where it is.
std::optional<std::string> why_no_attention(const Candidate& kernel);

/// Both contractions without their epilogues, of a kernel that is lowered so.
std::optional<Attention> attention_of(const Candidate& kernel);

}  // namespace kfusion
