#include "kfusion/plan/partition/check.hpp"

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

class Checking {
 public:
  explicit Checking(const Plan& plan)
      : plan_(plan), g_(plan.graph), group_(g_.nodes.size(), -1), known_(g_.nodes.size(), false) {}

  void run() {
    for (std::size_t n = 0; n < g_.nodes.size(); ++n) known_[n] = kind(g_.nodes[n].op) == OpKind::kSource;
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) check(plan_.groups[i], static_cast<int>(i));
    for (std::size_t n = 0; n < g_.nodes.size(); ++n)
      require(group_[n] >= 0 || plan_.folded.work[n].kind == WorkKind::kNone, n, "is computed by no kernel");
    for (const Output& o : g_.outputs) {
      const NodeId base = plan_.folded.value[at(o.node)].base;
      require(known_[at(base)], at(base), "is a result that no kernel stores");
    }
  }

 private:
  void check(const Group& group, int index) {
    for (const Load& load : group.loads)
      require(known_[at(load.access.base)], at(load.access.base), "is loaded before it is stored");
    for (const NodeId n : group.nodes) {
      require(group_[at(n)] < 0, at(n), "is computed by two kernels");
      group_[at(n)] = index;
      for (const Access& a : plan_.folded.work[at(n)].reads)
        require(known_[at(a.base)] || group_[at(a.base)] == index, at(a.base), "is read before it is computed");
    }
    for (const NodeId n : group.stores) {
      require(group_[at(n)] == index, at(n), "is stored by a kernel that does not compute it");
      known_[at(n)] = true;
      if (is_part(g_[n])) store_part(n);
    }
  }

  /// Into a slice of its own: those of a join are as many elements as it has, and no two begin at one.
  void store_part(NodeId n) {
    const Access& slice = plan_.folded.value[at(n)];
    Stored& join = stored_[slice.base];
    require(slice.base != n && slice.shape == plan_.computed[at(n)], at(n), "is a part of no join");
    require(g_[n].size() == 0 || join.offsets.insert(slice.offset).second, at(n), "is stored over another part");
    join.elements += product(slice.shape);
    join.parts += 1;
    if (join.parts < std::ssize(plan_.folded.parts.at(slice.base))) return;
    require(join.elements == g_[slice.base].size(), at(slice.base), "has elements that no part stores");
    known_[at(slice.base)] = true;
  }

  void require(bool holds, std::size_t n, const char* what) const {
    if (!holds)
      throw std::logic_error("kfusion: internal error: node %" + std::to_string(n) + " (" +
                             std::string(name(g_.nodes[n].op)) + ") " + what);
  }

  const Plan& plan_;
  const Graph& g_;
  std::vector<int> group_;   ///< by node: where it is computed
  std::vector<bool> known_;  ///< by node: in memory
  struct Stored {
    std::int64_t elements = 0;
    std::ptrdiff_t parts = 0;
    std::set<std::int64_t> offsets;
  };
  std::map<NodeId, Stored> stored_;  ///< by join
};

}  // namespace

void check_plan(const Plan& plan) { Checking(plan).run(); }

}  // namespace kfusion
