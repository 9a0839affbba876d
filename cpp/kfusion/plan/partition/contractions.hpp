// Patterns around matrix products, recognised from primitives: what a general loop could not fuse, a special kernel
// can.
#pragma once
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

/// softmax(q k^T) v, with scaling and masks in between: three parts become one that keeps running maxima and sums
/// ("online softmax"), so that the scores never lie in memory (Dao et al., FlashAttention, 2022).
void join_attention(const Graph& g, const FoldedGraph& folded, Partition& p);

/// A product whose elements are only needed reduced over rows or columns of it, as in the SPLADE head, is reduced where
/// its tiles are made. Monotone maps between the product and a max commute with it and run once per result.
void join_contraction_reductions(const Graph& g, const FoldedGraph& folded, Partition& p);

/// A cast of an operand, for one product (or gather) alone, happens where the operand is loaded.
void join_casts(const Graph& g, Partition& p);

/// A reshape that copies the result of a product is the order in which the product stores it.
void join_copies(const FoldedGraph& folded, Partition& p);

/// Products of one left factor whose results nobody reads together (q, k and v of one input) are one kernel where an
/// executor runs it in less time: with few rows a product alone has tiles for a part of a GPU only. So are products of
/// one depth that nobody else reads, such as gradients of weights: the last round of tiles of each leaves a part of the
/// GPU idle.
void join_products_beside(const Graph& g, const FoldedGraph& folded, Partition& p);

}  // namespace kfusion
