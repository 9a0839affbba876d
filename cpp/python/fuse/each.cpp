#include "python/fuse/each.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "cpu/isa.hpp"
#include "cpu/loops/loops_by.hpp"
#include "cpu/openmp.hpp"
#include "cpu/platform.hpp"
#include "kfusion/graph/flat.hpp"
#include "python/arrays/arguments.hpp"
#include "python/fuse/fused_callable.hpp"
#include "python/records/plan_options.hpp"

namespace kfusion::fuse {
namespace {

namespace each_detail {

constexpr std::size_t kMost = 64;

struct Wanted {
  Graph graph;
  std::vector<int> targets;
  Executors executors;
  bool aligned;
  cpu::Isa isa = cpu::isa();
  cpu::LoopsBy loops = cpu::loops_by();

  bool operator==(const Wanted&) const = default;
};
struct Hash {
  std::size_t operator()(const Wanted& w) const { return hash(w.graph); }
};
struct Shared {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<Wanted, std::shared_ptr<const Each>, Hash> all;
};
Shared& shared() {
  static auto& s = *new Shared;
  return s;
}

/// The first and the last byte of a view that is not empty, and one more.
std::pair<std::uintptr_t, std::uintptr_t> bytes_of(const View& v) {
  auto begin = reinterpret_cast<std::intptr_t>(v.data), end = begin;
  for (int d = 0; d < v.ndim; ++d) (v.strides[d] < 0 ? begin : end) += (v.shape[d] - 1) * v.strides[d];
  return {static_cast<std::uintptr_t>(begin), static_cast<std::uintptr_t>(end) + item_bytes(v.dtype)};
}

Given given_of(py::handle set, const py::tuple& names) {
  if (!PyTuple_Check(set.ptr()) || PyTuple_GET_SIZE(set.ptr()) < static_cast<Py_ssize_t>(names.size()))
    throw TypeError("kfusion: _each takes tuples of arguments");
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(set.ptr())) - names.size();
  return Given(reinterpret_cast<PyTupleObject*>(set.ptr())->ob_item, count, names.empty() ? nullptr : names.ptr(),
               false);
}

}  // namespace each_detail
}  // namespace

std::shared_ptr<const Each> each_of(const Graph& graph, const Device& device, const PlanOptions& options,
                                    const Inputs& inputs, const Entry& entry) {
  if (entry.targets.empty() || graph.outputs.size() != entry.targets.size() || !entry.calls.empty()) return {};
  const auto is_held = [](const Source& s) { return s.argument < 0; };
  if (std::ranges::any_of(entry.sources, is_held)) return {};
  each_detail::Wanted w{{}, {}, options.executors, true};
  for (const Target& t : entry.targets) {
    if (t.part || t.in_place) return {};
    w.targets.push_back(static_cast<int>(t.input));
  }
  for (const Array* a : inputs.all()) w.aligned = w.aligned && is_aligned_to_vectors(a->view);
  auto flat = flattened(graph, kEachElements);
  if (!flat) return {};
  w.graph = *std::move(flat);
  const Place place = inputs.first()->view.place;
  const Interruptible unlocked;
  each_detail::Shared& s = each_detail::shared();
  {
    const std::lock_guard lock(s.mutex);
    if (const auto found = s.all.find(w); found != s.all.end()) return found->second;
  }
  std::shared_ptr<const Each> made = Each::make(make_plan(w.graph, device, options), place, w.aligned, w.targets);
  const std::lock_guard lock(s.mutex);
  if (s.all.size() >= each_detail::kMost) s.all.clear();  // functions keep what they use
  return s.all.emplace(std::move(w), std::move(made)).first->second;
}

EachCall::Launch& EachCall::launch_of(const Entry& entry, const double* parameters) {
  std::vector<double> values = entry.each->values(parameters);
  const auto has_these = [&](const Launch& l) {
    return l.each == entry.each && std::ranges::equal(
                                       l.values, values, {}, [](double x) { return std::bit_cast<std::uint64_t>(x); },
                                       [](double x) { return std::bit_cast<std::uint64_t>(x); });
  };
  const auto found = std::ranges::find_if(launches_, has_these);
  if (found != launches_.end()) return *found;
  return launches_.emplace_back(entry.each, std::move(values), ArraySets(entry.each->arrays()));
}

void EachCall::note(const View& v, bool written, bool dense) {
  if (v.size() == 0) return;
  const auto [begin, end] = each_detail::bytes_of(v);
  ranges_.push_back({begin, end, sets_, written, dense ? -1 : std::ssize(views_)});
  if (!dense) views_.push_back(v);
}

View EachCall::Range::seen(const EachCall& all) const {
  if (view >= 0) return all.views_[static_cast<std::size_t>(view)];
  View bytes;
  bytes.data = reinterpret_cast<std::byte*>(begin);
  bytes.dtype = DType::kBool;
  bytes.place = all.place_;
  bytes.ndim = 1, bytes.shape[0] = static_cast<std::int64_t>(end - begin), bytes.strides[0] = 1;
  return bytes;
}

void EachCall::add(Call& call, const Entry& entry, const Inputs& inputs, const Arrays& targets,
                   const double* parameters) {
  if (const Array* first = inputs.first()) {
    if (library_ && (first->framework != library_ || first->view.place != place_))
      throw TypeError(call.says("all lists must have arrays of one library on one device, got " + library_->name() +
                                " on " + to_string(place_) + " and " + first->framework->name() + " on " +
                                to_string(first->view.place)));
    library_ = first->framework, place_ = first->view.place;
  }
  std::vector<std::byte*> addresses;
  for (std::size_t i = 0; i < inputs.all().size(); ++i) {
    const Array& a = *inputs.all()[i];
    addresses.push_back(a.view.data);
    note(a.view, std::ranges::count(entry.targets, i, &Target::input) > 0, entry.each != nullptr);
    if (a.keep && entry.each) keep_.push_back(a.keep);
  }
  ++sets_;
  if (!entry.each) return;
  launch_of(entry, parameters).sets.add(addresses, inputs.first()->view.size());
  for (const Array& t : targets) written_.emplace_back(t.framework, py::reinterpret_borrow<py::object>(t.object));
}

void EachCall::require_apart(const Call& call) const {
  std::vector<const Range*> sorted;
  for (const Range& r : ranges_) sorted.push_back(&r);
  std::ranges::sort(sorted, {}, [](const Range* r) { return r->begin; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Range& a = *sorted[i];
    for (std::size_t k = i + 1; k < sorted.size() && sorted[k]->begin < a.end; ++k) {
      const Range& b = *sorted[k];
      if (a.set == b.set || (!a.written && !b.written)) continue;
      if (overlap(a.seen(*this), b.seen(*this)) == Overlap::kNone) continue;
      throw ValueError(call.says("arrays at places " + std::to_string(std::min(a.set, b.set)) + " and " +
                                 std::to_string(std::max(a.set, b.set)) +
                                 " of the lists share memory, and the function writes to one of them"));
    }
  }
}

void EachCall::run(Call& call) const {
  if (launches_.empty()) return;
  in_stream_order(call, *library_, place_, false, [&](Stream stream) {
    const cpu::OnTorchThreads threads(library_->library() == arrays::ArrayLibrary::kTorch && place_.on_host());
    for (const Launch& l : launches_) l.each->run(l.sets, l.values, stream);
  });
  for (const auto& [framework, object] : written_) framework->written(object);
}

py::object FusedCallable::each(py::handle self, const py::list& sets, const py::tuple& names,
                               const py::object& stream) {
  Call call(name_.c_str(), stream, arrays::Takes::kAny);
  EachCall all;
  std::vector<bool> alone, none;
  for (const py::handle set : sets) {
    const auto [has_kernel, gives_none] = add_set(self, call, each_detail::given_of(set, names), all);
    alone.push_back(!has_kernel), none.push_back(gives_none);
  }
  all.require_apart(call);
  all.run(call);
  py::list results(sets.size());
  bool any = false;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    py::object result = py::none();
    if (alone[i])
      result = run_plain(self, call, each_detail::given_of(sets[i], names));
    else if (!none[i])
      result = written_of(self, call, each_detail::given_of(sets[i], names));
    any = any || !result.is_none();
    results[i] = std::move(result);
  }
  return any ? py::object(results) : py::none();
}

template <class With>
void FusedCallable::with_entry(py::handle self, Call& call, const Given& given, const With& with) {
  forget_what_was_planned_otherwise();
  Signature s(call);
  fill(s, given);
  if (s.traced()) throw TypeError(call.says("a function for each of many cannot be called inside a traced function"));
  if (s.has_plain()) throw TypeError(call.says("the arguments must be arrays, numbers and containers of them"));
  with_ready(self, call, s, given, s.no_arrays(), [&](const Request&, Ready& ready, const Inputs& inputs) {
    with(ready, inputs, arrays_of(call, ready.entry->targets, inputs, s.memory()));
  });
}

std::pair<bool, bool> FusedCallable::add_set(py::handle self, Call& call, const Given& given, EachCall& all) {
  std::pair<bool, bool> found;
  with_entry(self, call, given, [&](Ready& ready, const Inputs& inputs, const Arrays& targets) {
    const Entry& entry = *ready.entry;
    all.add(call, entry, inputs, targets, entry.each ? ready.draw() : nullptr);
    found = {entry.each != nullptr, entry.gives_none};
  });
  return found;
}

py::object FusedCallable::written_of(py::handle self, Call& call, const Given& given) {
  py::object result;
  with_entry(self, call, given, [&](const Ready& ready, const Inputs&, const Arrays& targets) {
    result = returned(*ready.entry, {}, targets);
  });
  return result;
}

}  // namespace kfusion::fuse
