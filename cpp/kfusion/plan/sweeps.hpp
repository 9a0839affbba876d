// How often a kernel goes over its rows.
#pragma once
#include "kfusion/plan/fold.hpp"
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Sets passes and row_on_chip. A sweep ends where a reduced value is needed again by all elements of its row. Two
/// statistics need no sweep of their own, because they can be merged from pieces: the squared distances from a mean
/// (Chan, Golub and LeVeque, 1983) and the sum of exponentials less a maximum (Milakov and Gimelshein, 2018).
void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group);

}  // namespace kfusion
