// A function that keeps an executable for each signature of its arguments.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "kfusion/plan/plan.hpp"
#include "python/fuse/each.hpp"
#include "python/fuse/given.hpp"
#include "python/fuse/guards.hpp"
#include "python/fuse/measured_times.hpp"
#include "python/fuse/table.hpp"

namespace kfusion::fuse {

/// Python's subclasses say what it computes, and bind_fuse.cpp what of it Python sees.
class FusedCallable {
 public:
  FusedCallable(std::string name, std::vector<std::string> parameters, const py::dict& options, bool takes_out,
                bool reads_ints, bool each);

  bool takes_out() const { return takes_out_; }

  py::object call(py::handle self, const Given& given);
  /// Calls it for many sets of arguments, of which `names` are those of the last ones (each.cpp).
  py::object each(py::handle self, const py::list& sets, const py::tuple& names, const py::object& stream);

  template <class Visit>
  int traverse(const Visit& visit) const {
    if (const int stopped = guards_.traverse(visit)) return stopped;
    if (const int stopped = arguments_.traverse(visit)) return stopped;
    if (const int stopped = alike_.traverse(visit)) return stopped;
    return table_.traverse(visit);
  }

  std::size_t cached() const { return table_.size(); }

  /// The number of the environment that holds now.
  std::uint64_t environment(py::handle self);

  void clear();

  /// From now on Python takes the arguments of calls apart, since the function sets something in them or elsewhere.
  void take_apart() { takes_apart_ = true; }

 private:
  static constexpr int kMostAttempts = 8;  // at a call with arrays that change while they are read

  static py::handle or_none(PyObject* object) { return object ? object : Py_None; }

  static ValueError changing(const Call& call);

  /// A call, and what it is known by.
  struct Request {
    py::handle self;
    Call& call;
    Signature& s;
    std::span<const std::uint64_t> environments;  ///< of the function, and of each argument that is guarded
    const Given& given;
  };

  /// What a call runs, the arrays that it reads, and the parameters of its kernels.
  struct Ready {
    /// `found`: the entry of the signature, if there is one. Where a comparison of this call's numbers has the other
    /// answer, there is another entry, by the signature with that; where it cannot compute the parameters, one for the
    /// very values of the numbers.
    Ready(FusedCallable& f, const Request& r, std::shared_ptr<const Entry> found, const Arrays& outs);
    /// The parameters, with random numbers: once for each call, when nothing can fail or is looked for again.
    const double* draw();
    std::shared_ptr<const Entry> entry;
    std::optional<Inputs> inputs;

   private:
    static constexpr int kMostAnswers = 64;  // of one call that differ from those of entries

    void take(const Request& r, std::shared_ptr<const Entry> taken);
    std::pmr::vector<double> room;
    const double* parameters = nullptr;
  };

  /// Entries of plans that were made before other times were known.
  void forget_what_was_planned_otherwise();

  /// Empty where an argument is a traced value: the call is part of another function's trace. Not inlined, since a
  /// signature is large: functions call each other, and themselves, many levels deep while they are traced.
  [[gnu::noinline]] py::object run(py::handle self, Call& call, const Given& given);
  [[gnu::noinline]] py::object run_plain(py::handle self, Call& call, const Given& given);

  /// What a call with tracers of JAX among its arguments gives: more of them. Empty where there are none.
  static py::object staged_by_jax(py::handle self, const Given& given);
  /// The plain function's nodes become part of the trace; there is no array to write to and no stream to run on.
  static py::object inside_trace(py::handle self, const Call& call, const Given& given);

  void fill(Signature& s, const Given& given) const;
  const char* parameter(std::size_t i) const;

  /// What with(request, ready, inputs) gives for what a call runs, which is traced if it must be. The arrays that the
  /// function names are those that the entry was made for; where they change meanwhile, it is looked for again.
  template <class With>
  auto with_ready(py::handle self, Call& call, Signature& s, const Given& given, const Arrays& outs, const With& with) {
    for (int attempt = 0;; ++attempt) {
      const auto numbers = environments_of(s);  // read once: names may be rebound at any time
      const Request request{self, call, s, numbers, given};
      s.set_environments(numbers);
      auto entry = table_.find(s);
      if (!entry && attempt == 0 && update_guards(self, s)) continue;
      Ready ready(*this, request, std::move(entry), outs);
      if (ready.inputs->unchanged()) return with(request, ready, *ready.inputs);
      if (attempt == kMostAttempts) throw changing(call);
      table_.clear();
    }
  }

  std::pmr::vector<std::uint64_t> environments_of(Signature& s);
  /// Makes the present values of all guards the current environments. Returns whether they are others.
  bool update_guards(py::handle self, const Signature& s);
  /// The environments of a request; none where another holds now.
  Environments held(const Request& r);

  /// Throws where a constant of the trace was made of a tensor that requires grad.
  static void require_constants(const Call& call, const Entry& entry);

  py::object finish(const Request& r, Ready& ready, const Inputs& inputs);
  static py::object returned(const Entry& entry, Objects objects, const Arrays& targets);
  py::object finish_into(const Request& r, Ready& ready, const Inputs& inputs);
  /// Writes to arrays that kernels cannot write to: through fresh ones, by an entry of its own.
  void compute_and_copy(const Request& r);
  /// The entry of the signature, if there is one that holds.
  std::shared_ptr<const Entry> found_unchanged(const Request& r);

  // ---- many sets of arguments: each.cpp ----

  /// Calls with(ready, inputs, targets) for what a set runs, which is traced if it must be.
  template <class With>
  void with_entry(py::handle self, Call& call, const Given& given, const With& with);
  /// Whether the set has a kernel for many, and returns None. Not inlined, since a signature is large.
  [[gnu::noinline]] std::pair<bool, bool> add_set(py::handle self, Call& call, const Given& given, EachCall& all);
  /// What a set whose kernel has run returns: arguments that it wrote to.
  [[gnu::noinline]] py::object written_of(py::handle self, Call& call, const Given& given);

  // ---- new signatures: prepare.cpp ----

  /// Traces and compiles. What is traced while a name that it depends on is rebound is not kept. `numbers`: whether
  /// those among the arguments may be parameters.
  std::shared_ptr<const Entry> prepare(const Request& r, const Arrays& outs, bool numbers);
  /// What is known of calls that differ from this one in extents only; None where that is of the past.
  py::object found_alike(const Request& r);
  /// Compiles with the layouts of the arrays to write into, and again without those that kernels must not store into.
  void compile(Entry& entry, const Graph& graph, const Device& device, const Inputs& inputs, const Goals& goals) const;

  std::string name_;
  std::vector<std::string> parameters_;
  PlanOptions options_;
  bool in_passes_;  ///< a forward or backward pass
  std::atomic<std::uint64_t> generation_ = measured_generation();
  bool takes_out_, reads_ints_, each_;
  std::atomic<bool> names_weights_ = false;  ///< a trace met tensors of outside that require grad
  std::atomic<bool> takes_apart_ = false;
  Guards guards_;
  GuardsOfArguments arguments_;
  Table table_;
  Table alike_;  ///< the same by signatures without extents: one entry of those that differ in these only
};

}  // namespace kfusion::fuse
