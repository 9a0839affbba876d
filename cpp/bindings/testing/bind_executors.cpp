// Executors written in Python, and where values between kernels lie.
#include <algorithm>

#include "backends/backends.hpp"
#include "bindings/testing/testing.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/prices/traffic.hpp"
#include "python/arrays/numpy.hpp"
#include "python/fuse/entry.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"
#include "runtime/slots.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace {

namespace executors_binding {

constexpr const char* kAddDoc = R"(add_executor(executor)
--

Asks an executor written in Python as well, before all others, for plans that are made from now on; for tests and
experiments, since each question and each step takes Python's lock. It runs on hosts, on NumPy arrays.

Args:
    executor: an object with these attributes.
        name: a str that no other executor has.
        pattern: the pattern that it has kernels for, as plans name it.
        refusal(ops): for the names of a kernel's operations None, or what it does instead, as "computes a matmul alone".
        price_us(ops, roofline_us): what the kernel takes.
        run(arguments, results): computes it: writes to each array of results. arguments: what its operations read that
            it does not compute, in their order.

Raises:
    ValueError: there is such a name already, or no such pattern.
)";

Pattern pattern_named(const std::string& text) {
  for (int i = 0; i < kPatterns; ++i)
    if (name(static_cast<Pattern>(i)) == text) return static_cast<Pattern>(i);
  throw ValueError("kfusion: there is no pattern '" + text + "'");
}

py::list op_names(const Graph& g, const std::vector<NodeId>& nodes) {
  py::list names;
  for (const NodeId n : nodes) names.append(name(g[n].op));
  return names;
}

class PythonStep final : public ExecutableStep {
 public:
  PythonStep(py::handle run, StepRequest& request) : run_(run) {
    const Plan& plan = request.plan();
    const auto is_inside = [&](NodeId n) { return std::ranges::count(request.group().nodes, n) > 0; };
    for (const NodeId n : request.group().nodes)
      for (const NodeId a : plan.graph[n].arguments)
        if (!is_inside(plan.folded.value[static_cast<std::size_t>(a)].base)) arguments_.push_back(request.value(a));
    for (const NodeId n : request.group().stores) results_.push_back(request.value(n));
  }

  void run(const Frame& f) const override {
    const py::gil_scoped_acquire locked;
    run_(arrays_of(arguments_, f), arrays_of(results_, f));
  }

 private:
  static py::list arrays_of(const std::vector<Seen>& values, const Frame& f) {
    py::list list;
    for (const Seen& s : values) list.append(arrays::numpy_view(s.placed(f)));
    return list;
  }

  py::handle run_;
  std::vector<Seen> arguments_, results_;
};

/// Never destroyed, and neither are the Python objects that it holds: plans that are ready to run name it.
class PythonExecutor final : public Backend {
 public:
  explicit PythonExecutor(const py::object& o)
      : name_(o.attr("name").cast<std::string>()),
        pattern_(pattern_named(o.attr("pattern").cast<std::string>())),
        refusal_(py::object(o.attr("refusal")).release()),
        price_us_(py::object(o.attr("price_us")).release()),
        run_(py::object(o.attr("run")).release()) {}

  std::string_view name() const override { return name_; }
  bool has(Pattern p, const Device& d) const override { return p == pattern_ && d.is_cpu; }

  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    const py::gil_scoped_acquire locked;
    return refusal_(op_names(k.graph, k.nodes)).cast<std::optional<std::string>>();
  }

  Price price(const Plan& plan, const Group& group, const Price& roofline, const Device&) const override {
    const py::gil_scoped_acquire locked;
    const double us = price_us_(op_names(plan.graph, group.nodes), roofline.total_us).cast<double>();
    return {0, 0, us, us, Bound::kCompute};
  }

  StepPointer make_step(StepRequest& request) const override { return std::make_unique<PythonStep>(run_, request); }

 private:
  std::string name_;
  Pattern pattern_;
  py::handle refusal_, price_us_, run_;
};

void add(const py::object& executor) {
  auto made = std::make_unique<const PythonExecutor>(executor);
  if (made->name().empty() || executor_named(made->name()))
    throw ValueError("kfusion: there is an executor '" + std::string(made->name()) + "' already");
  add_backend(*made.release());
}

void remove(const std::string& name) {
  const auto* const found = dynamic_cast<const PythonExecutor*>(executor_named(name));
  if (!found) throw ValueError("kfusion: no executor '" + name + "' was added");
  remove_backend(*found);
}

std::string where(std::int64_t offset) {
  return offset == kKept ? "kept" : offset == kLent ? "lent" : offset == kTaken ? "taken" : std::to_string(offset);
}

py::dict slots(const GraphBuilder& g, const py::dict& fields, bool fuses) {
  const std::shared_ptr<const fuse::Compiled> c =
      fuse::compiled(g.graph(), read_device(fields), options_to_run(fuses), true, {});
  const Slots& s = c->executable.slots();
  py::list lies, starts, released;
  for (const std::int64_t offset : s.offsets) lies.append(where(offset));
  for (const auto& group : s.starts) {
    py::list all;
    for (const Start& start : group) all.append(py::make_tuple(start.slot, start.from, start.bytes));
    starts.append(all);
  }
  for (const auto& group : s.released) released.append(py::cast(group));
  py::dict d;
  d["inputs"] = s.inputs;
  d["outputs"] = s.outputs;
  d["lies"] = lies;
  d["bytes"] = s.bytes;
  d["starts"] = starts;
  d["released"] = released;
  return d;
}

}  // namespace executors_binding
}  // namespace

void bind_executors(py::module_& m) {
  m.def("slots", &executors_binding::slots, py::arg("graph"), py::arg("device"), py::arg("fuse") = true,
        R"(slots(graph, device, fuse=True)
--

For tests: where the values between the kernels of a graph's plan lie while it runs. Slots are numbered: inputs, outputs,
values between kernels in the order in which they are stored.

Returns:
    A dict: inputs and outputs, how many there are; lies, of each value between kernels its offset in the block that they
    share, or "kept", "lent" or "taken"; bytes of that block; by kernel starts, (slot, the one whose place it takes or -1,
    bytes that it is lent), and released, the slots whose memory is given back after it.
)");
  m.def("add_executor", &executors_binding::add, py::arg("executor"), executors_binding::kAddDoc);
  m.def("remove_executor", &executors_binding::remove, py::arg("name"),
        "remove_executor(name)\n--\n\nPlans from now on do not ask an executor that was added.\n");
}

}  // namespace kfusion::testing
