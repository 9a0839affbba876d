// Along which axes of a product the values of a kernel around it vary. Strides of the reads say it, never counts of
// elements: these are equal wherever extents are.
#pragma once
#include <map>
#include <optional>

#include "kfusion/plan/executor.hpp"
#include "kfusion/plan/views/domain.hpp"

namespace kfusion {

/// By node of a kernel: axes of its domain.
using Spans = std::map<NodeId, Axes>;

/// The spans of a kernel over `domain` (the axes of its product without those of one element) that reduces along
/// `reduced`. Nothing where a value has no such axes: it is stored and has neither all of them nor the kept ones, or
/// its readers do not see it along the same axes, in C order and completely.
std::optional<Spans> spans_in(const Candidate& kernel, const Extents& domain, Axes reduced);

}  // namespace kfusion
