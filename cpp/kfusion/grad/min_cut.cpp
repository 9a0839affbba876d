#include "kfusion/grad/min_cut.hpp"

#include <algorithm>

namespace kfusion::grad {

void MinCut::add_edge(int from, int to, Capacity capacity) {
  edges_.push_back({to, first(from), capacity});
  first(from) = static_cast<int>(edges_.size()) - 1;
  edges_.push_back({from, first(to), 0});
  first(to) = static_cast<int>(edges_.size()) - 1;
}

std::vector<bool> MinCut::sink_side(int source, int sink) {
  for (measure(sink); distance(source) >= 0 && flow_ < kInfinite; measure(sink)) augment(source, sink);
  std::vector<bool> found(first_.size());
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = distance_[i] >= 0;
  return found;
}

/// Distances along edges that still have room.
void MinCut::measure(int sink) {
  distance_.assign(first_.size(), -1);
  distance(sink) = 0;
  std::vector<int> queue{sink};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const int node = queue[i];
    for (int e = first(node); e >= 0; e = edge(e).next) {
      const int from = edge(e).to;
      if (edge(e ^ 1).left == 0 || distance(from) >= 0) continue;
      distance(from) = distance(node) + 1;
      queue.push_back(from);
    }
  }
}

/// All flow along shortest ways. A stack in place of recursion: ways may be as long as the graph.
void MinCut::augment(int source, int sink) {
  current_ = first_;
  std::vector<int> path;
  for (int node = source;;) {
    if (node == sink) {
      node = push(path);
      if (flow_ >= kInfinite) return;
      continue;
    }
    int& e = current(node);
    while (e >= 0 && (edge(e).left == 0 || distance(edge(e).to) != distance(node) - 1)) e = edge(e).next;
    if (e >= 0) {
      path.push_back(e);
      node = edge(e).to;
    } else if (path.empty()) {
      return;
    } else {
      node = edge(path.back() ^ 1).to;
      path.pop_back();
      current(node) = edge(current(node)).next;
    }
  }
}

/// Fills the path, and cuts it where it is full. The node where it ends then.
int MinCut::push(std::vector<int>& path) {
  Capacity room = kInfinite;
  for (const int e : path) room = std::min(room, edge(e).left);
  flow_ += room;
  auto full = path.size();
  for (std::size_t i = path.size(); i-- > 0;) {
    edge(path[i]).left -= room;
    edge(path[i] ^ 1).left += room;
    if (edge(path[i]).left == 0) full = i;
  }
  const int node = edge(path[full] ^ 1).to;
  path.resize(full);
  return node;
}

}  // namespace kfusion::grad
