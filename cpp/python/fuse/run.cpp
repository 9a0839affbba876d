// Inputs, results and the run of one call.
#include <algorithm>
#include <functional>
#include <span>

#include "cpu/openmp.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/room.hpp"
#include "python/arrays/arguments.hpp"
#include "python/arrays/numpy.hpp"
#include "python/fuse/entry.hpp"
#include "python/fuse/library.hpp"
#include "python/records/plan_options.hpp"
#include "runtime/lent.hpp"
#include "runtime/views.hpp"

namespace kfusion::fuse {

using arrays::Framework;
using arrays::Result;

namespace {

namespace run_detail {

constexpr std::size_t kFewArrays = 8;

/// `fresh`: by output, whether it was just made for this call. `results`: the first of the outputs, which are the
/// caller's.
void execute(Call& call, const Compiled& c, const Inputs& inputs, std::byte* const* outputs, const double* parameters,
             const bool* fresh, std::span<Result> results) {
  Room<const std::byte*, kFewArrays> from(inputs.all().size());
  for (std::size_t i = 0; const Array* a : inputs.all()) from[i++] = a->view.data;
  const Framework& library = inputs.first() ? *inputs.first()->framework : arrays::numpy_framework();
  const Place place = inputs.first() ? inputs.first()->view.place : Place{};
  CallersLibrary callers(call, c.device, library, inputs, results, fresh);
  const std::size_t count = c.results.size();
  in_stream_order(call, library, place, std::any_of(fresh, fresh + count, std::identity{}), [&](Stream stream) {
    if (poisons_memory())
      for (std::size_t i = 0; i < count; ++i)
        if (fresh[i] && outputs[i]) poison(outputs[i], static_cast<std::size_t>(c.results[i].nbytes()), place, stream);
    try {
      const cpu::OnTorchThreads threads(library.library() == arrays::ArrayLibrary::kTorch && place.on_host());
      c.executable.run({from.data(), outputs, parameters, stream, &callers});
    } catch (const IndexError& e) {
      throw IndexError(call.says(e.what()));
    }
  });
}

std::span<const std::int64_t> extents(const View& v) { return {v.shape, static_cast<std::size_t>(v.ndim)}; }

void check_out(const Call& call, const Array& a, const View& wanted, const Array* first) {
  const auto came = [&] { return a.framework->name(); };
  if (first && a.framework != first->framework)
    throw TypeError(call.says("out must be the same kind of array as the inputs (" + first->framework->name() +
                              "), got " + came()));
  if (a.framework->immutable()) throw TypeError(call.says("out must be writable, and " + came() + " arrays are not"));
  if (a.view.place != wanted.place)
    throw TypeError(call.says("out must be on the inputs' device (" + to_string(wanted.place) + "), got " +
                              to_string(a.view.place)));
  if (a.view.dtype != wanted.dtype)
    throw TypeError(call.says(std::string("out must be ") + name(wanted.dtype) + ", got " + name(a.view.dtype)));
  if (!std::ranges::equal(extents(a.view), extents(wanted)))
    throw ValueError(call.says("out must have shape " + shape_text(wanted.ndim, wanted.shape) + ", got " +
                               shape_text(a.view.ndim, a.view.shape)));
  if (a.view.read_only) throw ValueError(call.says("out must be writable, got a read-only array"));
  if (self_overlapping(a.view))
    throw ValueError(call.says("out must not overlap itself, got strides " + shape_text(a.view.ndim, a.view.strides)));
}

bool same_strides(const View& a, const View& b) {
  for (int d = 0; d < a.ndim; ++d)
    if (a.shape[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

Result fresh_result(Call& call, const View& layout, const Array* like) {
  return like ? arrays::fresh(call, layout, *like) : arrays::numpy_empty(layout, arrays::numpy_dtype(layout.dtype));
}

Graph copy_of(const View& v) {
  GraphBuilder g;
  const NodeId x = g.input("x", Extents(v.shape, v.shape + v.ndim), v.dtype, Library::kNumpy, v.place, false,
                           is_c_contiguous(v) ? Extents{} : element_strides(v));
  g.set_outputs({{"", x}});
  return g.graph();
}

}  // namespace run_detail
}  // namespace

py::object Source::array() const { return PyWeakref_Check(held.ptr()) ? held() : held; }

Inputs::Inputs(Call& call, const Entry& entry, Signature& s)
    : objects_(s.memory()),
      held_(s.memory()),
      all_(s.memory()),
      calls_(entry.calls),
      unchanged_(std::ranges::all_of(entry.watched, &Watched::unchanged)) {
  const auto is_held = [](const Source& source) { return source.argument < 0; };
  held_.reserve(static_cast<std::size_t>(std::ranges::count_if(entry.sources, is_held)));
  all_.reserve(entry.sources.size());
  for (const Source& source : entry.sources) {
    if (!is_held(source)) {
      all_.push_back(&s.arrays().at(static_cast<std::size_t>(source.argument)));
      continue;
    }
    objects_.push_back(source.array());
    if (objects_.back().is_none()) {  // another thread has rebound its name since, and nobody else has it
      unchanged_ = false;
      return;
    }
    held_.push_back(borrow_readable(call, "an array that the function names", objects_.back()));
    all_.push_back(&held_.back());
    std::pmr::vector<std::uint64_t> words(s.memory());
    append_words(held_.back(), words);
    unchanged_ = unchanged_ && std::ranges::equal(words, source.words);
  }
}

void require_as_traced(const Call& call, const Graph& graph, const Inputs& inputs) {
  const auto text = [](const View& v) {
    return std::string(name(v.dtype)) + " " + shape_text(v.ndim, v.shape) + " on " + to_string(v.place);
  };
  std::size_t i = 0;
  for (const Node& n : graph.nodes) {
    if (n.op != Op::input) continue;
    const auto& attributes = std::get<InputAttributes>(n.attributes);
    const View said = view_of(n, attributes.strides), &has = inputs.all().at(i++)->view;
    if (has.dtype != said.dtype || has.place != said.place ||
        !std::ranges::equal(run_detail::extents(has), run_detail::extents(said)))
      throw ValueError(call.says(attributes.name + " must export the memory that its shape and dtype say (" +
                                 text(said) + "), got " + text(has)));
    if (has.size() > 0 && !run_detail::same_strides(has, said))
      throw ValueError(call.says(attributes.name + " must not change while it is traced"));
  }
}

namespace {

/// Whether the run makes the results, when it stores them: where a library's functions need memory before. On the
/// library's own stream: for another one, all of a call's memory is there before the stream waits.
bool leaves_results(const Call& call, const Entry& entry, const Inputs& inputs, const Goals& goals) {
  if (!inputs.first() || inputs.first()->framework->library() != arrays::ArrayLibrary::kTorch) return false;
  const bool are_all_fresh = goals.outs.empty() && entry.targets.empty();
  if (!are_all_fresh || !inputs.first()->framework->knows_stream() || call.has_stream_argument()) return false;
  if (lends_everywhere()) return true;
  return !inputs.first()->view.place.on_host() && entry.compiled->executable.has_library_steps();
}

}  // namespace

Results compute(Call& call, const Entry& entry, const Inputs& inputs, const double* parameters, const Goals& goals,
                std::pmr::memory_resource* memory) {
  const Compiled& c = *entry.compiled;
  const auto given = [&](std::size_t i) -> const Array* {
    if (i < entry.results()) return goals.outs.empty() ? nullptr : &goals.outs[i];
    const std::size_t k = i - entry.results();
    return entry.targets[k].direct ? &goals.targets[k] : nullptr;
  };
  const bool is_left = leaves_results(call, entry, inputs, goals);
  Results results(memory);
  results.reserve(c.results.size());
  Room<std::byte*, run_detail::kFewArrays> to(c.results.size());
  Room<bool, run_detail::kFewArrays> fresh(c.results.size());
  for (std::size_t i = 0; i < c.results.size(); ++i) {
    const Array* const array = given(i);
    fresh[i] = !array;
    results.push_back(array ? Result{array->view, {}}
                      : is_left && c.results[i].size() > 0
                          ? Result{c.results[i], {}}
                          : run_detail::fresh_result(call, c.results[i], inputs.first()));
    to[i] = results.back().view.data;
  }
  run_detail::execute(call, c, inputs, to.data(), parameters, fresh.data(), std::span(results).first(entry.results()));
  for (std::size_t k = 0; k < goals.targets.size(); ++k) {
    const Array& target = goals.targets[k];
    if (!entry.targets[k].direct && !entry.targets[k].in_place)
      copy_into(call, c.device, results[entry.results() + k].view, target);
    target.framework->written(target.object);
  }
  results.resize(entry.results());
  return results;
}

Objects hand_out(Results& results, const Inputs& inputs, std::pmr::memory_resource* memory) {
  Objects objects(memory);
  objects.reserve(results.size());
  for (Result& r : results) {
    objects.push_back(inputs.first() ? inputs.first()->framework->finish(r) : std::move(r.object));
    if (r.view.ndim == 0 && arrays::is_numpy(objects.back())) objects.back() = objects.back()[py::tuple()];
  }
  return objects;
}

void check_outs(const Call& call, const Entry& entry, const Inputs& inputs, const Goals& goals) {
  const Arrays& outs = goals.outs;
  if (outs.size() != entry.results())
    throw ValueError(call.says("out must be one array for each of " + std::to_string(entry.results()) +
                               " results, got " + std::to_string(outs.size())));
  const auto overlaps = [](const View& v) {
    return [&v](const Array& a) { return overlap(a.view, v) != Overlap::kNone; };
  };
  for (std::size_t i = 0; i < outs.size(); ++i) {
    run_detail::check_out(call, outs[i], entry.compiled->results[i], inputs.first());
    if (std::any_of(outs.begin(), outs.begin() + static_cast<std::ptrdiff_t>(i), overlaps(outs[i].view)))
      throw ValueError(call.says("out must be arrays that do not overlap each other"));
    if (std::ranges::any_of(goals.targets, overlaps(outs[i].view)))
      throw ValueError(call.says("out must not overlap an array that the function writes to"));
  }
}

bool can_write(const Compiled& c, const Inputs& inputs, const Arrays& outs) {
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (!run_detail::same_strides(outs[i].view, c.results[i])) return false;
    for (std::size_t k = 0; k < inputs.all().size(); ++k) {
      const Overlap o = overlap(inputs.all()[k]->view, outs[i].view);
      if (o == Overlap::kOther || (o == Overlap::kSame && !c.executable.may_overwrite(i, k, false))) return false;
    }
  }
  return true;
}

std::shared_ptr<const Compiled> copying(const Device& device, const View& from, const Array& to) {
  const bool aligned = is_aligned_to_vectors(from) && is_aligned_to_vectors(to.view);
  const Array* const wanted[] = {&to};
  return compiled(run_detail::copy_of(from), device, options_to_run(true), aligned, wanted);
}

void copy_into(Call& call, const Device& device, const View& from, const Array& to) {
  const auto c = copying(device, from, to);
  const std::byte* x = from.data;
  std::byte* y = to.view.data;
  in_stream_order(call, *to.framework, from.place, true,
                  [&](Stream stream) { c->executable.run({&x, &y, nullptr, stream, nullptr}); });
}

}  // namespace kfusion::fuse
