#include "python/fuse/fused_callable.hpp"

#include <algorithm>

#include "backends/backends.hpp"
#include "cpu/job.hpp"
#include "python/arrays/arguments.hpp"
#include "python/arrays/foreign.hpp"
#include "python/records/plan_options.hpp"

namespace kfusion::fuse {

FusedCallable::FusedCallable(std::string name, std::vector<std::string> parameters, const py::dict& options,
                             bool takes_out, bool reads_ints, bool each)
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

py::object FusedCallable::call(py::handle self, const Given& given) {
  Call call(name_.c_str(), given.stream() ? given.stream() : Py_None,
            takes_out_ ? arrays::Takes::kAny : arrays::Takes::kAll);
  try {
    if (py::object result = run(self, call, given)) return result;
  } catch (const py::error_already_set& error) {
    const bool has_effects = py::hasattr(error.type(), "__kfusion_effects__");
    if (!has_effects || !py::hasattr(self, "_with_effects")) throw;
    return self.attr("_with_effects")(error.value(), given.args(), given.kwargs(), or_none(given.out()),
                                      or_none(given.stream()));
  }
  return inside_trace(self, call, given);
}

std::uint64_t FusedCallable::environment(py::handle self) {
  if (const std::uint64_t known = guards_.number(); known != Guards::kUnknown) return known;
  guards_.update(self.attr("_guards")());
  return guards_.number();
}

void FusedCallable::clear() {
  table_.clear();
  alike_.clear();
  guards_.clear();
  arguments_.clear();
  names_weights_ = takes_apart_ = false;
}

void FusedCallable::forget_what_was_planned_otherwise() {
  const std::uint64_t now = measured_generation();
  if (generation_.exchange(now, std::memory_order_relaxed) != now) table_.clear();
}

FusedCallable::Ready::Ready(FusedCallable& f, const Request& r, std::shared_ptr<const Entry> found, const Arrays& outs)
    : room(r.s.memory()) {
  bool by_values = false;
  for (int answers = 0;;) {
    take(r, found ? std::move(found) : f.prepare(r, outs, !by_values));
    if (!inputs->unchanged()) return;
    const Scalars::Evaluated evaluated = entry->scalars.evaluate(r.s, room);
    parameters = evaluated.parameters;
    if (evaluated.kind == Scalars::Evaluated::kAsTraced || by_values) return;  // there, what is left is of no number
    by_values = evaluated.kind == Scalars::Evaluated::kOtherwise || ++answers > kMostAnswers;
    by_values ? r.s.add_all_values() : r.s.add_other_answer(evaluated.number);
    found = f.found_unchanged(r);
  }
}

const double* FusedCallable::Ready::draw() {
  if (parameters == room.data()) entry->scalars.draw(room);
  return parameters;
}

void FusedCallable::Ready::take(const Request& r, std::shared_ptr<const Entry> taken) {
  entry = std::move(taken);
  require_constants(r.call, *entry);
  inputs.emplace(r.call, *entry, r.s);
}

py::object FusedCallable::run(py::handle self, Call& call, const Given& given) {
  if (!names_weights_ || takes_apart_ || !arrays::torch_grad_is_enabled()) try {
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

py::object FusedCallable::run_plain(py::handle self, Call& call, const Given& given) {
  forget_what_was_planned_otherwise();
  Signature s(call);  // the arrays are borrowed once: what runs is what was looked at
  try {
    fill(s, given);
  } catch (...) {  // beside a traced value arrays need be no more than that
    if (has_traced(given.args().ptr()) || has_traced(given.kwargs().ptr())) return {};
    if (py::object staged = staged_by_jax(self, given)) return staged;
    throw;
  }
  if (s.traced()) return {};
  // In passes what is left is the instance that a method is of.
  if ((s.has_plain() && !in_passes_ && py::hasattr(self, "_taken_apart")) || (takes_apart_ && reads_ints_))
    return self.attr("_taken_apart")(given.args(), given.kwargs(), or_none(given.out()), or_none(given.stream()));
  return with_ready(self, call, s, given, s.outs(),
                    [this](const Request& r, Ready& ready, const Inputs& inputs) { return finish(r, ready, inputs); });
}

std::pmr::vector<std::uint64_t> FusedCallable::environments_of(Signature& s) {
  std::pmr::vector<std::uint64_t> numbers(s.memory());
  numbers.push_back(guards_.number());
  for (PyObject* const object : s.guarded()) numbers.push_back(arguments_.number(object));
  return numbers;
}

bool FusedCallable::update_guards(py::handle self, const Signature& s) {
  bool changed = guards_.update(self.attr("_guards")());
  for (PyObject* const object : s.guarded())
    changed = arguments_.update(object, self.attr("_guards")(py::handle(object))) || changed;
  return changed;
}

Environments FusedCallable::held(const Request& r) {
  Environments held{guards_.held(r.environments[0])};
  for (std::size_t i = 0; i < r.s.guarded().size(); ++i)
    held.push_back(arguments_.held(r.s.guarded()[i], r.environments[i + 1]));
  return std::ranges::count(held, nullptr) > 0 ? Environments{} : held;
}

py::object FusedCallable::staged_by_jax(py::handle self, const Given& given) {
  if (!arrays::loaded_module("jax") || !py::hasattr(self, "_staged_by_jax")) return {};
  py::object staged = self.attr("_staged_by_jax")(given.args(), given.kwargs(), or_none(given.out()));
  return staged.is(py::handle(Py_NotImplemented)) ? py::object() : staged;
}

py::object FusedCallable::inside_trace(py::handle self, const Call& call, const Given& given) {
  if (given.out() || given.stream())
    throw TypeError(call.says("out= and stream= cannot be given inside a traced function"));
  return self.attr("__wrapped__")(*given.args(), **given.kwargs());
}

void FusedCallable::fill(Signature& s, const Given& given) const {
  for (std::size_t i = 0; i < given.positional(); ++i)
    reads_ints_ ? s.add_unless_int(parameter(i), given[i]) : s.add(parameter(i), given[i]);
  given.each_keyword([&](PyObject* name, PyObject* value) { s.add_keyword(name, value, reads_ints_); });
  if (!s.arrays().empty()) s.add_number(s.arrays().front().framework->mode());
  PyObject* const out = given.out();
  if (!out) return;
  if (!PyTuple_Check(out) && !PyList_Check(out)) return s.add_out(out);
  for (const py::handle each : py::reinterpret_borrow<py::object>(out)) s.add_out(each.ptr());
}

const char* FusedCallable::parameter(std::size_t i) const {
  return parameters_.empty() ? "an argument" : parameters_[std::min(i, parameters_.size() - 1)].c_str();
}

ValueError FusedCallable::changing(const Call& call) {
  return ValueError(call.says("an array that the function names has another shape each time that it is read"));
}

void FusedCallable::require_constants(const Call& call, const Entry& entry) {
  for (const py::object& weak : entry.made_of)
    if (const py::object tensor = referent(weak); tensor && arrays::torch_requires_grad(tensor))
      throw arrays::RequiresGrad(call.says("it names a tensor that requires grad"));
}

py::object FusedCallable::finish(const Request& r, Ready& ready, const Inputs& inputs) {
  if (r.call.has_stream_argument() && !(inputs.first() && memory_of(inputs.first()->view.place).has_streams))
    throw ValueError(r.call.says("stream applies to CUDA arrays, and the inputs are on the CPU"));
  if (r.given.out()) return finish_into(r, ready, inputs);
  const Entry& entry = *ready.entry;
  const Arrays targets = arrays_of(r.call, entry.targets, inputs, r.s.memory());
  const cpu::InPasses passes(in_passes_);
  auto results = compute(r.call, entry, inputs, ready.draw(), {r.s.no_arrays(), targets}, r.s.memory());
  return returned(entry, hand_out(results, inputs, r.s.memory()), targets);
}

py::object FusedCallable::returned(const Entry& entry, Objects objects, const Arrays& targets) {
  for (const Array& a : targets) objects.push_back(py::reinterpret_borrow<py::object>(a.object));
  if (entry.is_single) return std::move(objects[0]);
  py::list list(objects.size());
  for (std::size_t i = 0; i < objects.size(); ++i) list[i] = std::move(objects[i]);
  return entry.fill(list);
}

py::object FusedCallable::finish_into(const Request& r, Ready& ready, const Inputs& inputs) {
  const Entry& entry = *ready.entry;
  const Arrays targets = arrays_of(r.call, entry.targets, inputs, r.s.memory());
  const auto& outs = r.s.outs();
  check_outs(r.call, entry, inputs, {outs, targets});
  if (can_write(*entry.compiled, inputs, outs))
    compute(r.call, entry, inputs, ready.draw(), {outs, targets}, r.s.memory());
  else
    compute_and_copy(r);
  Objects objects(r.s.memory());
  for (const Array& out : outs) {
    out.framework->written(out.object);
    objects.push_back(py::reinterpret_borrow<py::object>(out.object));
  }
  return returned(entry, std::move(objects), targets);
}

std::shared_ptr<const Entry> FusedCallable::found_unchanged(const Request& r) {
  auto found = table_.find(r.s);
  return found && Inputs(r.call, *found, r.s).unchanged() ? std::move(found) : nullptr;
}

void FusedCallable::compute_and_copy(const Request& r) {
  r.s.leave_outs();
  Ready ready(*this, r, found_unchanged(r), r.s.no_arrays());
  const Inputs& inputs = *ready.inputs;
  if (!inputs.unchanged()) throw changing(r.call);
  const Entry& entry = *ready.entry;
  const Arrays targets = arrays_of(r.call, entry.targets, inputs, r.s.memory());
  const auto& outs = r.s.outs();
  check_outs(r.call, entry, inputs, {outs, targets});  // traced at another time, and what it reads may differ
  const auto results = compute(r.call, entry, inputs, ready.draw(), {r.s.no_arrays(), targets}, r.s.memory());
  for (std::size_t i = 0; i < outs.size(); ++i) copy_into(r.call, entry.compiled->device, results[i].view, outs[i]);
}

}  // namespace kfusion::fuse
