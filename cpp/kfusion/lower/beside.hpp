// Groups of several products, each with operations of its own after it: what an executor may compute in one kernel.
// Those of one left factor (queries, keys and values of one input) are one product of more columns. Others have one
// depth (gradients of weights): their tiles follow one another.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kfusion/lower/contraction.hpp"

namespace kfusion {

/// Nodes of a kernel that read one another, and those of them that it stores; each list ascending.
struct Chain {
  std::vector<NodeId> nodes, stores;

  Candidate of(const Candidate& kernel) const { return {kernel.graph, kernel.folded, kernel.pattern, nodes, stores}; }
};

/// The chains of a kernel, the one with the first node first. One of products beside one another has several.
std::vector<Chain> chains_of(const Candidate& kernel);

/// Why the chains of a kernel are no products beside one another, as a clause about an executor; nothing where they
/// are: each is one product, stored, of the same depth.
std::optional<std::string> why_no_products_beside(const Candidate& kernel, const std::vector<Chain>& chains);

/// The axes and products of each chain; of a kernel of one chain products_of(). Empty where it is none of both.
std::vector<Contraction> products_beside(const Candidate& kernel);

/// Whether the left factor of the first product is that of all.
bool have_one_left(const std::vector<Contraction>& beside);

/// A part of a group that is a contraction of its own.
Group part_of(const Group& group, const std::vector<NodeId>& nodes, const std::vector<NodeId>& stores);

}  // namespace kfusion
