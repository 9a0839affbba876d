#include "python/jax/executables.hpp"

#include <mutex>
#include <unordered_map>

#include "cpu/platform.hpp"
#include "kfusion/error.hpp"
#include "runtime/views.hpp"

namespace py = pybind11;

namespace kfusion::ffi {
namespace {

namespace executables_detail {

constexpr std::size_t kMost = 1024;

struct Table {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<std::int64_t, std::shared_ptr<const Call>> calls;
};

/// Never destroyed: XLA's threads may run calls while the process ends.
Table& table() {
  static auto& t = *new Table;
  return t;
}

py::object& loader() {
  static auto& function = *new py::object;
  return function;
}

Graph moved_to(Graph g, Place place) {
  for (Node& n : g.nodes)
    if (!n.place.on_host()) n.place = place;
  return g;
}

}  // namespace executables_detail
}  // namespace

using namespace executables_detail;

struct Call::Places {
  cpu::ForkSafeMutex mutex;
  std::vector<std::pair<int, std::shared_ptr<const fuse::Compiled>>> compiled;  ///< by the number of the place
};

Call::Call(Graph graph, const Device& device, PlanOptions options, Place place)
    : graph_(std::move(graph)),
      device_(device),
      options_(std::move(options)),
      place_(place),
      inputs_(input_views(graph_)),
      places_(std::make_shared<Places>()) {
  for (const Output& o : graph_.outputs) outputs_.push_back(view_of(graph_[o.node]));
  places_->compiled.emplace_back(place.index, made(place));
}

std::shared_ptr<const fuse::Compiled> Call::made(Place place) const {
  std::vector<fuse::Array> arrays(outputs_.size());
  std::vector<const fuse::Array*> outs;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    arrays[i].view = outputs_[i];
    outs.push_back(&arrays[i]);
  }
  auto c = fuse::compiled(moved_to(graph_, place), device_, options_, true, outs);
  for (const View& v : c->results)
    if (v.size() > 0 && !is_c_contiguous(v)) throw ValueError("kfusion: a result would not lie in C order");
  return c;
}

std::shared_ptr<const fuse::Compiled> Call::at(Place place) const {
  {
    const std::lock_guard lock(places_->mutex);
    for (const auto& [index, compiled] : places_->compiled)
      if (index == place.index) return compiled;
  }
  const py::gil_scoped_acquire locked;
  auto c = made(place);
  const std::lock_guard lock(places_->mutex);
  places_->compiled.emplace_back(place.index, c);
  return c;
}

std::shared_ptr<const Call> find_call(std::int64_t key) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto found = t.calls.find(key);
  return found == t.calls.end() ? nullptr : found->second;
}

void add_call(std::int64_t key, std::shared_ptr<const Call> call) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  if (t.calls.size() >= kMost) t.calls.clear();
  t.calls.insert_or_assign(key, std::move(call));
}

std::shared_ptr<const Call> load_call(std::int64_t key, const std::string& text) {
  const py::gil_scoped_acquire locked;
  if (!loader()) throw ValueError("kfusion: import kfusion and jax before an executable of XLA's is loaded");
  try {
    loader()(key, text);
  } catch (py::error_already_set& e) {
    throw ValueError(e.what());  // XLA's thread has no use for a Python exception
  }
  return find_call(key);
}

void set_loader(py::object function) { loader() = std::move(function); }

}  // namespace kfusion::ffi
