// The skeletons in the order in which they are tried: the first that suits a kernel runs it.
#include <stdexcept>

#include "codegen/skeleton.hpp"

#define KF_SKELETONS(_) \
  _(pointwise)          \
  _(summed_ring_rows)   \
  _(summed_rows)        \
  _(packed_rows)        \
  _(span_rows)          \
  _(weighted_rows)      \
  _(spread_rows)        \
  _(ring_rows)          \
  _(short_rows)         \
  _(team_rows)          \
  _(split_rows)         \
  _(long_rows)          \
  _(tiles)              \
  _(columns)

namespace kfusion::codegen {

#define KF_DECLARE(name) Skeleton name();
KF_SKELETONS(KF_DECLARE)

Chosen choose(const Problem& p) {
#define KF_NAME(name) name,
  for (const auto row : {KF_SKELETONS(KF_NAME)})
    if (auto configuration = row().choose(p)) return {row(), std::move(configuration)};
  throw std::logic_error("kfusion: no skeleton runs this kernel");
}

bool has_planes(const Problem& p) { return weighted_rows().choose(p) != nullptr || ring_rows().choose(p) != nullptr; }

}  // namespace kfusion::codegen
