// Groups of several products of one left factor, each with operations of its own after it (queries, keys and values of
// one input): what an executor may compute beside one another, as one product of more columns.
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
/// are: each is one product, stored, of the same rows.
std::optional<std::string> no_products_beside(const Candidate& kernel, const std::vector<Chain>& chains);

/// The axes and products of each chain; of a kernel of one chain products_of(). Empty where it is none of both.
std::vector<Contraction> products_beside(const Candidate& kernel);

/// A part of a group that is the contraction `c`, as a group of its own: along the axes of `c`, without those of one
/// element.
Group group_around(const Plan& plan, const Contraction& c, const std::vector<NodeId>& nodes,
                   std::vector<NodeId> stores);

/// Whether a map's size does not tell whether it is along rows or along columns: group_around() cannot say it then.
bool is_unclear(const Candidate& kernel, const Contraction& c);

}  // namespace kfusion
