// What a graph needs before its plan can run, and a report of what is possible does without.
#pragma once
#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Leaves only kernels that have elements: a value without elements becomes a view of a constant, and so does a
/// reduction or product of nothing (0, 1, NaN).
Graph without_empty_work(Graph g);

/// Makes results arrays of their own: one that is an input, a constant, part of another value or a repetition of it is
/// copied, in a stage "copy". A result that is a computed value in another order stays a view. `g` is simplified
/// already: simplifying would drop the copies.
Graph with_own_results(Graph g);

}  // namespace kfusion
