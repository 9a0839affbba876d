#include "kfusion/lower/kernel.hpp"
#include "kfusion/plan/names.hpp"

namespace kfusion {

void set_labels(Kernel& k, const Graph& g) {
  const std::vector<std::string> names = value_names(g);
  const auto label = [&](NodeId node) { return node < 0 ? std::string() : names[static_cast<std::size_t>(node)]; };
  for (Step& s : k.steps) s.label = label(s.node);
  for (Operand& o : k.loads) o.label = label(o.node);
  for (Store& s : k.stores) s.to.label = label(s.to.node);
}

}  // namespace kfusion
