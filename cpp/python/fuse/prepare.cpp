// What is made for calls of a new signature: their trace, and what runs it.
#include <algorithm>

#include "kfusion/graph/builder.hpp"
#include "python/fuse/fused_callable.hpp"
#include "python/records/device_dict.hpp"
#include "python/stl.hpp"

namespace kfusion::fuse {
namespace {

namespace prepare_detail {

Source read_source(Call& call, const py::handle& source) {
  if (PyLong_CheckExact(source.ptr())) return {source.cast<int>(), {}, {}};
  Source s{-1, py::reinterpret_borrow<py::object>(source), {}};
  std::pmr::vector<std::uint64_t> words;
  append_words(borrow_readable(call, "an array that the function names", s.array()), words);
  s.words.assign(words.begin(), words.end());
  return s;
}

py::list nothing(std::size_t count) {
  py::list list(count);
  for (std::size_t i = 0; i < count; ++i) list[i] = py::ellipsis();  // which no function returns by itself
  return list;
}

/// A signature without the extents of its arrays, and without values of numbers, while this lives.
class WithoutExtents {
 public:
  explicit WithoutExtents(Signature& s) : s_(s), values_(s.added().size()) { s_.exchange_extents(); }
  ~WithoutExtents() {
    s_.remove_values(s_.added().size() - values_);
    s_.exchange_extents();
  }
  WithoutExtents(const WithoutExtents&) = delete;
  WithoutExtents& operator=(const WithoutExtents&) = delete;

 private:
  Signature& s_;
  std::size_t values_;
};

}  // namespace prepare_detail
}  // namespace

std::shared_ptr<const Entry> FusedCallable::prepare(const Request& r, const Arrays& outs, bool numbers) {
  py::list strides, shapes;
  for (const Array& x : r.s.arrays()) {
    strides.append(arrays::strides_of(x));
    shapes.append(arrays::to_tuple(x.view.ndim, x.view.shape));
  }
  const py::object alike = numbers ? found_alike(r) : py::none();
  const py::object prepared =
      r.self.attr("_prepare")(r.given.args(), r.given.kwargs(), strides, numbers, shapes, alike);
  forget_what_was_planned_otherwise();  // it may have read other times
  const auto entry = std::make_shared<Entry>();
  entry->alike = prepared.attr("alike");
  entry->fill = prepared.attr("fill");
  for (const py::handle function : prepared.attr("calls"))
    entry->calls.push_back(py::reinterpret_borrow<py::object>(function));
  entry->is_single = entry->fill.is_none();
  entry->scalars = Scalars(prepared.attr("instructions"), prepared.attr("parameters"));
  try {
    for (const py::handle source : prepared.attr("sources"))
      entry->sources.push_back(prepare_detail::read_source(r.call, source));
  } catch (const arrays::RequiresGrad&) {
    names_weights_ = true;  // calls need not be traced to find out
    throw;
  }
  for (const py::handle each : prepared.attr("watched")) {
    const auto array = each.cast<py::tuple>();
    entry->watched.emplace_back(array[0], array[1].cast<bool>(), py::object(array[2]));
  }
  for (const py::handle each : prepared.attr("made_of"))
    entry->made_of.push_back(py::reinterpret_borrow<py::object>(each));
  const Inputs inputs(r.call, *entry, r.s);
  const Graph& graph = prepared.attr("graph").cast<const GraphBuilder*>()->graph();
  require_as_traced(r.call, graph, inputs);
  for (const py::handle written : prepared.attr("written")) entry->targets.push_back(read_target(written));
  const Device device = read_device(prepared.attr("device"));
  if (each_) entry->each = each_of(graph, device, options_, inputs, *entry);
  if (entry->each)
    entry->gives_none = !entry->is_single && entry->fill(prepare_detail::nothing(entry->targets.size())).is_none();
  else
    compile(*entry, graph, device, inputs, {outs, arrays_of(r.call, entry->targets, inputs, r.s.memory())});
  if (const Environments held = this->held(r); !held.empty()) {
    const auto looked_at = prepared.attr("numbers").cast<std::vector<int>>();
    if (numbers && !entry->alike.is(alike)) {
      const prepare_detail::WithoutExtents without(r.s);
      alike_.insert(r.s, looked_at, entry, held);
    }
    table_.insert(r.s, looked_at, entry, held);
  }
  return entry;
}

py::object FusedCallable::found_alike(const Request& r) {
  std::shared_ptr<const Entry> entry;
  {
    const prepare_detail::WithoutExtents without(r.s);
    entry = alike_.find(r.s);
  }
  if (!entry || !Inputs(r.call, *entry, r.s).unchanged()) return py::none();
  return entry->alike;
}

void FusedCallable::compile(Entry& entry, const Graph& graph, const Device& device, const Inputs& inputs,
                            const Goals& goals) const {
  const auto is_aligned = [](const Array* a) { return !a || is_aligned_to_vectors(a->view); };
  const std::size_t first = graph.outputs.size() - entry.targets.size();
  std::vector<const Array*> outs(graph.outputs.size());
  if (goals.outs.size() == first)
    for (std::size_t i = 0; i < first; ++i) outs[i] = &goals.outs[i];
  for (std::size_t k = 0; k < entry.targets.size(); ++k)
    if (!entry.targets[k].in_place) outs[first + k] = &goals.targets[k];
  for (bool again = true; again;) {
    const bool aligned = std::ranges::all_of(inputs.all(), is_aligned) && std::ranges::all_of(outs, is_aligned);
    entry.compiled = compiled(graph, device, options_, aligned, outs);
    again = false;
    for (std::size_t k = 0; k < entry.targets.size(); ++k) {
      Target& t = entry.targets[k];
      t.direct = outs[first + k] && may_store(*entry.compiled, first + k, t, goals.targets[k]);
      again = again || (outs[first + k] && !t.direct);
      if (!t.direct) outs[first + k] = nullptr;
    }
  }
}

}  // namespace kfusion::fuse
