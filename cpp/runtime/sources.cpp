#include "runtime/sources.hpp"

#include "kfusion/error.hpp"
#include "kfusion/reference/reference.hpp"
#include "runtime/memory.hpp"
#include "runtime/views.hpp"

namespace kfusion {
namespace {

/// The node without the axes along which it repeats.
Node without_repetition(Node n) {
  n.place = {};
  if (auto* iota = std::get_if<IotaAttributes>(&n.attributes)) {
    n.shape = {n.shape[static_cast<std::size_t>(iota->axis)]};
    iota->axis = 0;
  } else if (std::get<ConstantAttributes>(n.attributes).parameter >= 0) {
    throw ValueError(
        "kfusion: a float argument on its own must not be an operand of the array library's functions: "
        "make an array of it outside");
  }
  return n;
}

}  // namespace

SourceValue::SourceValue(const Node& n, Place place) {
  Graph g;
  g.nodes.push_back(without_repetition(n));
  g.outputs.push_back({"", 0});
  View v = view_of(g.nodes[0]);
  const auto bytes = static_cast<std::size_t>(v.nbytes());
  host_ = cpu::Buffer(bytes);
  v.data = host_.data();
  run_reference(g, {}, {v});
  if (place.on_host()) return;
  const Memory& memory = memory_of(place);
  device_ = static_cast<std::byte*>(memory.allocate(bytes, place.index, 0));
  memory.copy(device_, host_.data(), bytes, place.index, 0);
  memory.synchronize(place.index, 0);
}

}  // namespace kfusion
