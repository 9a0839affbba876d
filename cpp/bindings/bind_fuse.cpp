// A function that keeps an executable for each signature of its arguments.
#include <algorithm>
#include <atomic>
#include <cstddef>

#include "backends/backends.hpp"
#include "bindings/arguments.hpp"
#include "bindings/arrays/foreign.hpp"
#include "bindings/bindings.hpp"
#include "bindings/device_dict.hpp"
#include "bindings/fuse/each.hpp"
#include "bindings/fuse/given.hpp"
#include "bindings/fuse/guards.hpp"
#include "bindings/fuse/table.hpp"
#include "bindings/measured_times.hpp"
#include "bindings/plan_options.hpp"
#include "bindings/stl.hpp"
#include "cpu/job.hpp"
#include "kfusion/graph/builder.hpp"
#include "runtime/views.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace fuse_binding {

using fuse::Array;
using fuse::Arrays;
using fuse::Call;
using fuse::Entry;
using fuse::Given;
using fuse::Inputs;
using fuse::Objects;
using fuse::Signature;

constexpr const char* kClassDoc = R"(FusedCallable(name, parameters, options, takes_out, reads_ints, each=False)
--

A function that runs as the kernels of its plan. Subclasses say what it computes:

    _guards()    the functions and names that it depends on: a list of kfusion._graph.guards.Guard
    _prepare(args, kwargs, strides, numbers, shapes, alike)
                 traces it: a kfusion._graph.calls.Prepared; its numbers may be parameters of kernels, or stay as they
                 are. strides and shapes are those of its arrays; alike is what _prepare has made of a call that differs
                 in shapes only, if there was one
    __wrapped__  the plain function, called where an argument is a traced value

Args:
    name: for messages, which start with "kfusion.<name>: ".
    parameters: names of the positional parameters, likewise.
    options: dict of the plan's options, as for make_plan; "in_passes": it is a forward or backward pass.
    takes_out: whether calls have the keywords out= and stream=.
    reads_ints: whether ints among the arguments are numbers as floats are, and not known by their values.
    each: whether it is called by _each() only, for many sets of arguments.
)";

constexpr const char* kEachDoc = R"(_each(self, sets, names, stream=None)
--

Calls the function for many sets of arguments: elementwise work on them in one kernel for all sets, other work in order.
Nothing is written where one of the sets is refused.

Args:
    sets: list of tuples, the arguments of each call; the last ones by name.
    names: tuple of the names of those.
    stream: as for a call.

Returns:
    A list of the results, or None where all are None.
)";

/// None for C order, else the strides in elements.
py::object strides_of(const Array& a) {
  if (is_c_contiguous(a.view)) return py::none();
  return arrays::to_tuple(a.view.ndim, a.view.strides, static_cast<std::int64_t>(item_bytes(a.view.dtype)));
}

fuse::Source read_source(Call& call, const py::handle& source) {
  if (PyLong_CheckExact(source.ptr())) return {source.cast<int>(), {}, {}};
  fuse::Source s{-1, py::reinterpret_borrow<py::object>(source), {}};
  std::pmr::vector<std::uint64_t> words;
  fuse::append_words(fuse::borrow_readable(call, "an array that the function names", s.array()), words);
  s.words.assign(words.begin(), words.end());
  return s;
}

class FusedCallable {
 public:
  FusedCallable(std::string name, std::vector<std::string> parameters, const py::dict& options, bool takes_out,
                bool reads_ints, bool each)
      : name_(std::move(name)),
        parameters_(std::move(parameters)),
        options_(read_options(options, available_executors())),
        in_passes_(options.contains("in_passes")),
        takes_out_(takes_out),
        reads_ints_(reads_ints),
        each_(each) {
    if (options_.beyond_executors())
      throw ValueError("kfusion." + name_ + ": executors must be named: a plan of what is possible does not run");
  }

  bool takes_out() const { return takes_out_; }

  py::object call(py::handle self, const Given& given) {
    Call call(name_.c_str(), given.stream() ? given.stream() : Py_None,
              takes_out_ ? arrays::Takes::kAny : arrays::Takes::kAll);
    if (py::object result = run(self, call, given)) return result;
    return inside_trace(self, call, given);
  }

  py::object each(py::handle self, const py::list& sets, const py::tuple& names, const py::object& stream) {
    Call call(name_.c_str(), stream, arrays::Takes::kAny);
    fuse::EachCall all;
    std::vector<bool> alone, none;
    for (const py::handle set : sets) {
      const auto [has_kernel, gives_none] = add_set(self, call, given_of(set, names), all);
      alone.push_back(!has_kernel), none.push_back(gives_none);
    }
    all.require_apart(call);
    all.run(call);
    py::list results(sets.size());
    bool any = false;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      py::object result = py::none();
      if (alone[i])
        result = run_plain(self, call, given_of(sets[i], names));
      else if (!none[i])
        result = written_of(self, call, given_of(sets[i], names));
      any = any || !result.is_none();
      results[i] = std::move(result);
    }
    return any ? py::object(results) : py::none();
  }

  template <class Visit>
  int traverse(const Visit& visit) const {
    if (const int stopped = guards_.traverse(visit)) return stopped;
    if (const int stopped = alike_.traverse(visit)) return stopped;
    return table_.traverse(visit);
  }

  std::size_t cached() const { return table_.size(); }

  /// The number of the environment that holds now.
  std::uint64_t environment(py::handle self) {
    if (const std::uint64_t known = guards_.number(); known != fuse::Guards::kUnknown) return known;
    guards_.update(self.attr("_guards")());
    return guards_.number();
  }

  void clear() {
    table_.clear();
    alike_.clear();
    guards_.clear();
    names_weights_ = false;
  }

 private:
  static constexpr int kMostAttempts = 8;  // at a call with arrays that change while they are read

  static py::handle or_none(PyObject* object) { return object ? object : Py_None; }

  static ValueError changing(const Call& call) {
    return ValueError(call.says("an array that the function names has another shape each time that it is read"));
  }

  /// A call, and what it is known by.
  struct Request {
    py::handle self;
    Call& call;
    Signature& s;
    std::uint64_t environment;
    const Given& given;
  };

  /// What a call runs, and the parameters of its kernels.
  struct Ready {
    /// `found`: the entry of the signature, if there is one. Where it cannot compute the parameters, there is another
    /// for the very values of this call's numbers.
    Ready(FusedCallable& f, const Request& r, std::shared_ptr<const Entry> found, const Arrays& outs)
        : entry(found ? std::move(found) : f.prepare(r, outs, true)), room(r.s.memory()) {
      parameters = entry->scalars.evaluate(r.s, room);
      if (parameters || entry->scalars.is_empty()) return;
      r.s.add_all_values();
      entry = f.table_.find(r.s);
      if (!entry) entry = f.prepare(r, outs, false);
      parameters = entry->scalars.evaluate(r.s, room);  // what is left computes of no number: seeds
    }
    std::shared_ptr<const Entry> entry;
    std::pmr::vector<double> room;
    const double* parameters;
  };

  /// Entries of plans that were made before other times were known.
  void forget_what_was_planned_otherwise() {
    const std::uint64_t now = measured_generation();
    if (generation_.exchange(now, std::memory_order_relaxed) != now) table_.clear();
  }

  /// Empty where an argument is a traced value: the call is part of another function's trace. Not inlined, since a
  /// signature is large: functions call each other, and themselves, many levels deep while they are traced.
  [[gnu::noinline]] py::object run(py::handle self, Call& call, const Given& given) {
    if (!names_weights_ || !arrays::torch_grad_is_enabled()) try {
        return run_plain(self, call, given);
      } catch (const arrays::RequiresGrad&) {
        if (!py::hasattr(self, "_differentiable")) throw;
      } catch (const arrays::Foreign& error) {
        if (!py::hasattr(self, "_foreign")) throw;
        return self.attr("_foreign")(given.args(), given.kwargs(), or_none(given.out()), or_none(given.stream()),
                                     error.what());
      }
    return self.attr("_differentiable")(given.args(), given.kwargs(), or_none(given.out()), or_none(given.stream()));
  }

  [[gnu::noinline]] py::object run_plain(py::handle self, Call& call, const Given& given) {
    forget_what_was_planned_otherwise();
    Signature s(call);  // the arrays are borrowed once: what runs is what was looked at
    try {
      fill(s, given);
    } catch (...) {  // beside a traced value arrays need be no more than that
      if (fuse::has_traced(given.args().ptr()) || fuse::has_traced(given.kwargs().ptr())) return {};
      if (py::object staged = staged_by_jax(self, given)) return staged;
      throw;
    }
    if (s.traced()) return {};
    if (s.has_plain() && reads_ints_)
      return self.attr("_taken_apart")(given.args(), given.kwargs(), or_none(given.out()), or_none(given.stream()));
    for (int attempt = 0;; ++attempt) {
      const Request request{self, call, s, guards_.number(), given};  // read once: names may be rebound at any time
      s.set_environment(request.environment);
      auto entry = table_.find(s);
      if (!entry && attempt == 0 && guards_.update(self.attr("_guards")())) continue;
      const Ready ready(*this, request, std::move(entry), s.outs());
      require_constants(call, *ready.entry);
      const Inputs inputs(call, *ready.entry, s);
      if (inputs.unchanged()) return finish(request, ready, inputs);
      if (attempt == kMostAttempts) throw changing(call);
      table_.clear();
    }
  }

  /// What a call with tracers of JAX among its arguments gives: more of them. Empty where there are none.
  static py::object staged_by_jax(py::handle self, const Given& given) {
    if (!arrays::loaded_module("jax") || !py::hasattr(self, "_staged_by_jax")) return {};
    py::object staged = self.attr("_staged_by_jax")(given.args(), given.kwargs(), or_none(given.out()));
    return staged.is(py::handle(Py_NotImplemented)) ? py::object() : staged;
  }

  static Given given_of(py::handle set, const py::tuple& names) {
    if (!PyTuple_Check(set.ptr()) || PyTuple_GET_SIZE(set.ptr()) < static_cast<Py_ssize_t>(names.size()))
      throw TypeError("kfusion: _each takes tuples of arguments");
    const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(set.ptr())) - names.size();
    return Given(reinterpret_cast<PyTupleObject*>(set.ptr())->ob_item, count, names.empty() ? nullptr : names.ptr(),
                 false);
  }

  /// Calls with(entry, inputs, targets, parameters) for what a set runs, which is traced if it must be.
  template <class With>
  void with_entry(py::handle self, Call& call, const Given& given, const With& with) {
    forget_what_was_planned_otherwise();
    Signature s(call);
    fill(s, given);
    if (s.traced()) throw TypeError(call.says("a function for each of many cannot be called inside a traced function"));
    if (s.has_plain()) throw TypeError(call.says("the arguments must be arrays, numbers and containers of them"));
    for (int attempt = 0;; ++attempt) {
      const Request request{self, call, s, guards_.number(), given};
      s.set_environment(request.environment);
      auto entry = table_.find(s);
      if (!entry && attempt == 0 && guards_.update(self.attr("_guards")())) continue;
      const Ready ready(*this, request, std::move(entry), s.no_arrays());
      require_constants(call, *ready.entry);
      const Inputs inputs(call, *ready.entry, s);
      if (inputs.unchanged())
        return with(*ready.entry, inputs, fuse::arrays_of(call, ready.entry->targets, inputs, s.memory()),
                    ready.parameters);
      if (attempt == kMostAttempts) throw changing(call);
      table_.clear();
    }
  }

  /// Whether the set has a kernel for many, and returns None. Not inlined, since a signature is large.
  [[gnu::noinline]] std::pair<bool, bool> add_set(py::handle self, Call& call, const Given& given,
                                                  fuse::EachCall& all) {
    std::pair<bool, bool> found;
    with_entry(self, call, given,
               [&](const Entry& entry, const Inputs& inputs, const Arrays& targets, const double* parameters) {
                 all.add(call, entry, inputs, targets, parameters);
                 found = {entry.each != nullptr, entry.gives_none};
               });
    return found;
  }

  static py::list nothing(std::size_t count) {
    py::list list(count);
    for (std::size_t i = 0; i < count; ++i) list[i] = py::ellipsis();  // which no function returns by itself
    return list;
  }

  /// What a set whose kernel has run returns: arguments that it wrote to.
  [[gnu::noinline]] py::object written_of(py::handle self, Call& call, const Given& given) {
    py::object result;
    with_entry(self, call, given, [&](const Entry& entry, const Inputs&, const Arrays& targets, const double*) {
      result = returned(entry, {}, targets);
    });
    return result;
  }

  /// Throws where a constant of the trace was made of a tensor that requires grad.
  static void require_constants(const Call& call, const Entry& entry) {
    for (const py::object& weak : entry.made_of)
      if (const py::object tensor = fuse::referent(weak); tensor && arrays::torch_requires_grad(tensor))
        throw arrays::RequiresGrad(call.says("it names a tensor that requires grad"));
  }

  /// The plain function's nodes become part of the trace; there is no array to write to and no stream to run on.
  static py::object inside_trace(py::handle self, const Call& call, const Given& given) {
    if (given.out() || given.stream())
      throw TypeError(call.says("out= and stream= cannot be given inside a traced function"));
    return self.attr("__wrapped__")(*given.args(), **given.kwargs());
  }

  void fill(Signature& s, const Given& given) const {
    for (std::size_t i = 0; i < given.positional(); ++i)
      reads_ints_ ? s.add_unless_int(parameter(i), given[i]) : s.add(parameter(i), given[i]);
    given.each_keyword([&](PyObject* name, PyObject* value) { s.add_keyword(name, value, reads_ints_); });
    if (!s.arrays().empty()) s.add_number(s.arrays().front().framework->mode());
    PyObject* const out = given.out();
    if (!out) return;
    if (!PyTuple_Check(out) && !PyList_Check(out)) return s.add_out(out);
    for (const py::handle each : py::reinterpret_borrow<py::object>(out)) s.add_out(each.ptr());
  }

  const char* parameter(std::size_t i) const {
    return parameters_.empty() ? "an argument" : parameters_[std::min(i, parameters_.size() - 1)].c_str();
  }

  /// Traces and compiles. What is traced while a name that it depends on is rebound is not kept. `numbers`: whether
  /// those among the arguments may be parameters.
  std::shared_ptr<const Entry> prepare(const Request& r, const Arrays& outs, bool numbers) {
    py::list strides, shapes;
    for (const Array& x : r.s.arrays()) {
      strides.append(strides_of(x));
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
    entry->scalars = fuse::Scalars(prepared.attr("instructions"), prepared.attr("parameters"));
    try {
      for (const py::handle source : prepared.attr("sources")) entry->sources.push_back(read_source(r.call, source));
    } catch (const arrays::RequiresGrad&) {
      names_weights_ = true;  // calls need not be traced to find out
      throw;
    }
    for (const py::handle each : prepared.attr("watched")) {
      const auto tensor = each.cast<py::tuple>();
      entry->watched.emplace_back(tensor[0], tensor[1].cast<bool>());
    }
    for (const py::handle each : prepared.attr("made_of"))
      entry->made_of.push_back(py::reinterpret_borrow<py::object>(each));
    const Inputs inputs(r.call, *entry, r.s);
    const Graph& graph = prepared.attr("graph").cast<const GraphBuilder*>()->graph();
    fuse::require_as_traced(r.call, graph, inputs);
    for (const py::handle written : prepared.attr("written")) entry->targets.push_back(fuse::read_target(written));
    const Device device = read_device(prepared.attr("device"));
    if (each_) entry->each = fuse::each_of(graph, device, options_, inputs, *entry);
    if (entry->each)
      entry->gives_none = !entry->is_single && entry->fill(nothing(entry->targets.size())).is_none();
    else
      compile(*entry, graph, device, inputs, {outs, fuse::arrays_of(r.call, entry->targets, inputs, r.s.memory())});
    if (const auto held = guards_.held(r.environment)) {
      const auto looked_at = prepared.attr("numbers").cast<std::vector<int>>();
      if (numbers && !entry->alike.is(alike)) {
        const WithoutExtents without(r.s);
        alike_.insert(r.s, looked_at, entry, held);
      }
      table_.insert(r.s, looked_at, entry, held);
    }
    return entry;
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

  /// What is known of calls that differ from this one in extents only; None where that is of the past.
  py::object found_alike(const Request& r) {
    std::shared_ptr<const Entry> entry;
    {
      const WithoutExtents without(r.s);
      entry = alike_.find(r.s);
    }
    if (!entry || !Inputs(r.call, *entry, r.s).unchanged()) return py::none();
    return entry->alike;
  }

  /// With the layouts of the arrays to write into, and again without those that kernels must not store into.
  void compile(Entry& entry, const Graph& graph, const Device& device, const Inputs& inputs,
               const fuse::Goals& goals) const {
    const auto is_aligned = [](const Array* a) { return !a || fuse::is_aligned_to_vectors(a->view); };
    const std::size_t first = graph.outputs.size() - entry.targets.size();
    std::vector<const Array*> outs(graph.outputs.size());
    if (goals.outs.size() == first)
      for (std::size_t i = 0; i < first; ++i) outs[i] = &goals.outs[i];
    for (std::size_t k = 0; k < entry.targets.size(); ++k)
      if (!entry.targets[k].in_place) outs[first + k] = &goals.targets[k];
    for (bool again = true; again;) {
      const bool aligned = std::ranges::all_of(inputs.all(), is_aligned) && std::ranges::all_of(outs, is_aligned);
      entry.compiled = fuse::compiled(graph, device, options_, aligned, outs);
      again = false;
      for (std::size_t k = 0; k < entry.targets.size(); ++k) {
        fuse::Target& t = entry.targets[k];
        t.direct = outs[first + k] && fuse::may_store(*entry.compiled, first + k, t, goals.targets[k]);
        again = again || (outs[first + k] && !t.direct);
        if (!t.direct) outs[first + k] = nullptr;
      }
    }
  }

  py::object finish(const Request& r, const Ready& ready, const Inputs& inputs) {
    if (r.call.has_stream_argument() && !(inputs.first() && memory_of(inputs.first()->view.place).has_streams))
      throw ValueError(r.call.says("stream applies to CUDA arrays, and the inputs are on the CPU"));
    if (r.given.out()) return finish_into(r, ready, inputs);
    const Entry& entry = *ready.entry;
    const Arrays targets = fuse::arrays_of(r.call, entry.targets, inputs, r.s.memory());
    const cpu::InPasses passes(in_passes_);
    auto results = fuse::compute(r.call, entry, inputs, ready.parameters, {r.s.no_arrays(), targets}, r.s.memory());
    return returned(entry, fuse::hand_out(results, inputs, r.s.memory()), targets);
  }

  static py::object returned(const Entry& entry, Objects objects, const Arrays& targets) {
    for (const Array& a : targets) objects.push_back(py::reinterpret_borrow<py::object>(a.object));
    if (entry.is_single) return std::move(objects[0]);
    py::list list(objects.size());
    for (std::size_t i = 0; i < objects.size(); ++i) list[i] = std::move(objects[i]);
    return entry.fill(list);
  }

  py::object finish_into(const Request& r, const Ready& ready, const Inputs& inputs) {
    const Entry& entry = *ready.entry;
    const Arrays targets = fuse::arrays_of(r.call, entry.targets, inputs, r.s.memory());
    const auto& outs = r.s.outs();
    fuse::check_outs(r.call, entry, inputs, {outs, targets});
    if (fuse::can_write(*entry.compiled, inputs, outs))
      fuse::compute(r.call, entry, inputs, ready.parameters, {outs, targets}, r.s.memory());
    else
      compute_and_copy(r);
    Objects objects(r.s.memory());
    for (const Array& out : outs) {
      out.framework->written(out.object);
      objects.push_back(py::reinterpret_borrow<py::object>(out.object));
    }
    return returned(entry, std::move(objects), targets);
  }

  /// For arrays that kernels cannot write to: through fresh ones, by an entry of its own.
  void compute_and_copy(const Request& r) {
    r.s.leave_outs();
    auto found = table_.find(r.s);
    if (found && !Inputs(r.call, *found, r.s).unchanged()) found = nullptr;
    const Ready plain(*this, r, std::move(found), r.s.no_arrays());
    const Inputs inputs(r.call, *plain.entry, r.s);
    if (!inputs.unchanged()) throw changing(r.call);
    const Entry& entry = *plain.entry;
    const Arrays targets = fuse::arrays_of(r.call, entry.targets, inputs, r.s.memory());
    const auto& outs = r.s.outs();
    fuse::check_outs(r.call, entry, inputs, {outs, targets});  // traced at another time, and what it reads may differ
    const auto results =
        fuse::compute(r.call, entry, inputs, plain.parameters, {r.s.no_arrays(), targets}, r.s.memory());
    for (std::size_t i = 0; i < outs.size(); ++i)
      fuse::copy_into(r.call, entry.compiled->device, results[i].view, outs[i]);
  }

  std::string name_;
  std::vector<std::string> parameters_;
  PlanOptions options_;
  bool in_passes_;  ///< a forward or backward pass
  std::atomic<std::uint64_t> generation_ = measured_generation();
  bool takes_out_, reads_ints_, each_;
  std::atomic<bool> names_weights_ = false;  ///< a trace met tensors of outside that require grad
  fuse::Guards guards_;
  fuse::Table table_;
  fuse::Table alike_;  ///< the same by signatures without extents: one entry of those that differ in these only
};

/// nullptr before __init__, and while pybind11 lays the instance out: Python's collector can come by even then.
FusedCallable* made(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  if (!instance->simple_layout || !instance->simple_holder_constructed) return nullptr;
  return static_cast<FusedCallable*>(instance->simple_value_holder[0]);
}

FusedCallable& callable(PyObject* self) {
  FusedCallable* const f = made(self);
  if (!f) throw TypeError("kfusion: a FusedCallable whose __init__ was not called cannot be called");
  return *f;
}

PyObject* call(PyObject* self, PyObject* const* values, std::size_t count, PyObject* names) {
  try {
    FusedCallable& f = callable(self);
    return f.call(self, Given(values, static_cast<std::size_t>(PyVectorcall_NARGS(count)), names, f.takes_out()))
        .release()
        .ptr();
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

/// Where an instance has its vectorcall function: behind what pybind11 keeps in it.
constexpr Py_ssize_t kVectorcallOffset = sizeof(py::detail::instance);

PyObject* make_instance(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = py::detail::make_new_instance(type);
  if (!self) return nullptr;
  *reinterpret_cast<vectorcallfunc*>(reinterpret_cast<std::byte*>(self) + kVectorcallOffset) = &call;
#if PY_VERSION_HEX < 0x030C0000  // subclasses do not inherit it there
  if (type->tp_call == &PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
#endif
  return self;
}

/// Calls go to C++ as they are: through a method, each would make a tuple, a dict and a bound method, and ask pybind11
/// for types, which takes as long as a small kernel.
void let_python_call(PyTypeObject& type) {
  type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_basicsize = kVectorcallOffset + static_cast<Py_ssize_t>(sizeof(vectorcallfunc));
  type.tp_vectorcall_offset = kVectorcallOffset;
  type.tp_call = &PyVectorcall_Call;
  type.tp_new = &make_instance;
}

/// A function's globals hold the function: what is held here Python must be able to see.
void let_python_collect(PyTypeObject& type) {
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const FusedCallable* f = made(self);
    return f ? f->traverse([&](PyObject* object) { return visit(object, arg); }) : 0;
  };
  type.tp_clear = [](PyObject* self) {
    if (FusedCallable* f = made(self)) f->clear();
    return 0;
  };
}

py::object element_strides_of(py::handle array, const std::string& function_name, const std::string& argument) {
  Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  return strides_of(fuse::borrow_readable(call, argument.c_str(), array));
}

py::tuple array_spec(py::handle array, const std::string& function_name, const std::string& argument) {
  Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  const View v = fuse::borrow_readable(call, argument.c_str(), array).view;
  return py::make_tuple(arrays::to_tuple(v.ndim, v.shape), name(v.dtype), to_string(v.place));
}

}  // namespace fuse_binding
}  // namespace

void bind_fuse(py::module_& m) {
  using fuse_binding::FusedCallable;
  py::class_<FusedCallable>(m, "FusedCallable", py::custom_type_setup([](PyHeapTypeObject* type) {
                              fuse_binding::let_python_call(type->ht_type);
                              fuse_binding::let_python_collect(type->ht_type);
                            }),
                            fuse_binding::kClassDoc)
      .def(py::init<std::string, std::vector<std::string>, const py::dict&, bool, bool, bool>(), py::arg("name"),
           py::arg("parameters"), py::arg("options"), py::arg("takes_out"), py::arg("reads_ints"),
           py::arg("each") = false,
           "__init__(self, name, parameters, options, takes_out, reads_ints, each=False)\n--\n\n")
      .def(
          "_each",
          [](const py::object& self, const py::list& sets, const py::tuple& names, const py::object& stream) {
            return self.cast<FusedCallable&>().each(self, sets, names, stream);
          },
          py::arg("sets"), py::arg("names"), py::arg("stream") = py::none(), fuse_binding::kEachDoc)
      .def(
          "_cached", [](const FusedCallable& f) { return f.cached(); },
          "_cached(self)\n--\n\nThe number of signatures that it keeps.\n")
      .def(
          "_environment", [](const py::object& self) { return self.cast<FusedCallable&>().environment(self); },
          "_environment(self)\n--\n\nA number for what the function depends on beside its arguments, as it is now.\n")
      .def("_clear", [](FusedCallable& f) { f.clear(); }, "_clear(self)\n--\n\nForgets all signatures.\n");
  m.def("element_strides", &fuse_binding::element_strides_of, py::arg("array"), py::arg("function_name"),
        py::arg("argument"), R"(element_strides(array, function_name, argument)
--

Strides in elements of an array of any kind, None for C order (also where it must be copied to be read). Messages name
the function and the argument.
)");
  m.def("array_spec", &fuse_binding::array_spec, py::arg("array"), py::arg("function_name"), py::arg("argument"),
        R"(array_spec(array, function_name, argument)
--

(shape, dtype, place) of an array that may have no attributes for them, only DLPack's export or CUDA's array interface.
Messages name the function and the argument.
)");
}

}  // namespace kfusion
