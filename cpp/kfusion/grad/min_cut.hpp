// The cheapest way to part a directed graph: a maximal flow (Dinic's algorithm), and the cut that it leaves.
#pragma once
#include <cstdint>
#include <vector>

namespace kfusion::grad {

class MinCut {
 public:
  using Capacity = std::int64_t;
  /// Capacity of an edge that no cut may have; the sum of all others must be less.
  static constexpr Capacity kInfinite = INT64_MAX / 4;

  explicit MinCut(int nodes) : first_(static_cast<std::size_t>(nodes), -1) {}

  void add_edge(int from, int to, Capacity capacity);
  /// By node, whether it lies on the sink's side: of the cheapest cuts, that nearest to the sink. Once only.
  std::vector<bool> sink_side(int source, int sink);
  /// Capacity of that cut; kInfinite or more where each cut has an edge that none may have.
  Capacity capacity() const { return flow_; }

 private:
  struct Edge {
    int to, next;
    Capacity left;
  };

  Edge& edge(int e) { return edges_[static_cast<std::size_t>(e)]; }
  int& first(int node) { return first_[static_cast<std::size_t>(node)]; }
  int& distance(int node) { return distance_[static_cast<std::size_t>(node)]; }
  int& current(int node) { return current_[static_cast<std::size_t>(node)]; }

  void measure(int sink);
  void augment(int source, int sink);
  int push(std::vector<int>& path);

  std::vector<int> first_;     // by node: the last edge that leaves it, linked by `next`
  std::vector<Edge> edges_;    // in pairs: an edge, and the way back
  std::vector<int> distance_;  // by node: edges to the sink, -1 where there is no way
  std::vector<int> current_;   // by node: the edge that is tried next
  Capacity flow_ = 0;
};

}  // namespace kfusion::grad
