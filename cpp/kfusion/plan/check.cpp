#include "kfusion/plan/check.hpp"

#include <stdexcept>
#include <string>

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
    }
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
};

}  // namespace

void check_plan(const Plan& plan) { Checking(plan).run(); }

}  // namespace kfusion
