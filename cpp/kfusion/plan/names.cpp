#include "kfusion/plan/names.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "kfusion/graph/facts.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kLabelLength = 60;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Gives out names, the second of a kind with "_2" behind it.
class UniqueNames {
 public:
  explicit UniqueNames(std::size_t most) {
    counts_.reserve(most);
    taken_.reserve(most);
  }

  std::string unique(const std::string& name) {
    int& count = counts_[name];
    std::string result = ++count == 1 ? name : name + "_" + std::to_string(count);
    while (!taken_.insert(result).second) result = name + "_" + std::to_string(++count);
    return result;
  }

 private:
  std::unordered_map<std::string, int> counts_;
  std::unordered_set<std::string> taken_;
};

/// "result", "result[1]" or "scores" for the paths "", "1" and "scores"; "result[1].mean", "scores[0]" for longer ones.
std::string result_name(const std::string& path) {
  std::string result;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    const bool is_position = !key.empty() && std::all_of(key.begin(), key.end(), is_digit);
    if (is_position) {
      result += (result.empty() ? "result[" : "[") + key + "]";
    } else {
      result += (result.empty() ? "" : ".") + key;
    }
    begin = end + 1;
  }
  return result.empty() ? "result" : result;
}

/// By node: whether a node of its own stage reads it.
std::vector<bool> read_inside(const Graph& g) {
  std::vector<bool> result(g.nodes.size());
  for (const Node& n : g.nodes)
    for (const NodeId a : n.arguments)
      if (g[a].stage == n.stage) result[at(a)] = true;
  return result;
}

std::string inner_name(const Graph& g, NodeId id, bool is_read_inside) {
  const std::string op(name(g[id].op));
  if (g[id].stage < 0) return op;
  const std::string& stage = g.stages[at(g[id].stage)].name;
  return is_read_inside ? stage + "." + op : stage;
}

/// The first `head` and the last `tail` words.
std::string joined(const std::vector<std::string>& words, std::size_t head, std::size_t tail) {
  std::string text;
  for (std::size_t i = 0; i < head; ++i) text += (i ? "+" : "") + words[i];
  if (head + tail < words.size()) text += "+..";
  for (std::size_t i = words.size() - tail; i < words.size(); ++i) text += "+" + words[i];
  return text;
}

}  // namespace

void make_stage_names_unique(Graph& g) {
  UniqueNames names(g.stages.size());
  for (Stage& stage : g.stages) stage.name = names.unique(stage.name);
}

std::string composite_of(const std::string& stage) {
  const std::size_t dot = stage.find('.');
  if (dot == std::string::npos) return stage;
  const std::size_t end = stage.find_last_not_of("0123456789");
  return stage.substr(0, dot) + (stage[end] == '_' && end > dot ? stage.substr(end) : "");
}

std::vector<std::string> value_names(const Graph& g) {
  std::vector<std::string> result(g.nodes.size());
  UniqueNames names(g.nodes.size());
  for (std::size_t i = 0; i < g.nodes.size(); ++i)
    if (const auto* input = std::get_if<InputAttributes>(&g.nodes[i].attributes)) result[i] = names.unique(input->name);
  for (const Output& output : g.outputs)
    if (std::string& value = result[at(without_views(g, output.node))]; value.empty())
      value = names.unique(result_name(output.name));
  const std::vector<bool> inside = read_inside(g);
  for (std::size_t i = 0; i < g.nodes.size(); ++i)
    if (result[i].empty()) result[i] = names.unique(inner_name(g, static_cast<NodeId>(i), inside[i]));
  return result;
}

std::string name_in_variants(const Graph& g, NodeId n) {
  const std::string& stage = g.stages[at(g[n].stage)].name;
  return stage + " " + std::string(name(g[n].op)) + " " + std::string(name(g[n].dtype)) + shape_text(g[n].shape);
}

std::vector<StageId> stages_of(const Graph& g, const Group& group) {
  std::vector<StageId> result;
  std::unordered_set<StageId> seen;
  for (const NodeId n : group.nodes)
    if (seen.insert(g[n].stage).second) result.push_back(g[n].stage);
  return result;
}

Labels::Labels(const Graph& g) : g_(g) {
  std::unordered_map<std::string, int> count;
  for (const Stage& stage : g.stages) ++count[composites_.emplace_back(composite_of(stage.name))];
  for (const std::string& composite : composites_) parts_.push_back(count[composite]);
}

std::string Labels::of(const std::vector<StageId>& stages) const {
  const std::vector<std::string> all = words(stages);
  if (std::string text = joined(all, all.size(), 0); text.size() <= kLabelLength || all.size() <= 2) return text;
  std::size_t head = 1, tail = 1;
  while (head + tail + 1 < all.size()) {
    const bool longer_head = head <= tail;
    if (joined(all, head + longer_head, tail + !longer_head).size() > kLabelLength) break;
    ++(longer_head ? head : tail);
  }
  return joined(all, head, tail);
}

std::map<std::string, std::vector<StageId>> Labels::composites() const {
  std::map<std::string, std::vector<StageId>> result;
  for (std::size_t s = 0; s < composites_.size(); ++s)
    if (parts_[s] > 1) result[composites_[s]].push_back(static_cast<StageId>(s));
  return result;
}

/// The stages' names, a composite that is here with all its parts as one.
std::vector<std::string> Labels::words(const std::vector<StageId>& stages) const {
  std::unordered_map<std::string, int> here;
  for (const StageId s : stages) ++here[composites_[at(s)]];
  std::vector<std::string> result;
  std::unordered_set<std::string> written;
  for (const StageId s : stages) {
    const std::string& composite = composites_[at(s)];
    if (parts_[at(s)] == 1 || here[composite] < parts_[at(s)]) {
      result.push_back(g_.stages[at(s)].name);
    } else if (written.insert(composite).second) {
      result.push_back(composite);
    }
  }
  return result;
}

}  // namespace kfusion
