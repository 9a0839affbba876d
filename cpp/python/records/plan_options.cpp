#include "python/records/plan_options.hpp"

#include <set>

#include "backends/backends.hpp"
#include "kfusion/error.hpp"
#include "kfusion/plan/names.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace plan_options_detail {

constexpr const char* kWho = "kfusion.plan: ";

bool read_flag(const std::string& name, py::handle value) {
  if (!PyBool_Check(value.ptr()))
    throw TypeError(kWho + name + " must be a bool, got " + Py_TYPE(value.ptr())->tp_name);
  return value.ptr() == Py_True;
}

int read_limit(const std::string& name, py::handle value) {
  if (!PyLong_CheckExact(value.ptr())) throw TypeError(kWho + name + " must be an int");
  int overflow = 0;
  const long n = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || n < 1 || n > INT32_MAX) throw ValueError(kWho + name + " must be at least 1");
  return static_cast<int>(n);
}

std::vector<std::string> read_names(py::handle value) {
  try {
    if (!PyUnicode_Check(value.ptr())) return value.cast<std::vector<std::string>>();
  } catch (const py::cast_error&) {
  }
  throw TypeError(std::string(kWho) + "executors must be None, 'available' or a list of names");
}

std::string names_of(const Executors& executors) {
  std::string text;
  for (const Executor* e : executors) text += (text.empty() ? "" : ", ") + std::string(e->name());
  return text;
}

std::vector<std::pair<std::string, std::string>> read_pairs(const std::string& name, py::handle value) {
  try {
    return value.cast<std::vector<std::pair<std::string, std::string>>>();
  } catch (const py::cast_error&) {
    throw TypeError(kWho + name + " must be pairs of names");
  }
}

Executors read_executors(py::handle value) {
  if (value.is_none()) return possible_executors();
  const Executors all = available_executors();
  if (PyUnicode_Check(value.ptr()) && value.cast<std::string>() == "available") return all;
  Executors chosen;
  for (const std::string& name : read_names(value)) {
    const Executor* const found = executor_named(name);
    if (!found) throw ValueError(kWho + ("there is no executor '" + name + "', only " + names_of(all)));
    chosen.push_back(found);
  }
  return chosen;
}

PlanOptions read(const py::dict& options, Executors executors) {
  PlanOptions result;
  result.executors = std::move(executors);
  for (const auto& [key, value] : options) {
    const auto name = py::str(key).cast<std::string>();
    if (name == "fuse")
      result.fuse = read_flag(name, value);
    else if (name == "by_time")
      result.by_time = read_flag(name, value);
    else if (name == "executors")
      result.executors = read_executors(value);
    else if (name == "allow")
      result.allow = read_pairs(name, value);
    else if (name == "forbid")
      result.forbid = read_pairs(name, value);
    else if (name == "max_inputs")
      result.max_inputs = read_limit(name, value);
    else if (name == "max_outputs")
      result.max_outputs = read_limit(name, value);
    else if (name != "memory" && name != "in_passes")  // of what is kept for backward, and how calls run: no plan's
      throw ValueError(kWho + ("there is no option " + name));
  }
  return result;
}

void check(const std::set<std::string>& known, const char* option,
           const std::vector<std::pair<std::string, std::string>>& pairs) {
  for (const auto& [a, b] : pairs)
    for (const std::string& text : {a, b})
      if (!known.contains(text)) throw ValueError(kWho + (option + (": there is no call or op '" + text + "'")));
}

}  // namespace plan_options_detail
}  // namespace

PlanOptions read_options(const py::dict& options, Executors executors) {
  return plan_options_detail::read(options, std::move(executors));
}

PlanOptions options_to_run(bool fuse) {
  PlanOptions options;
  options.fuse = fuse;
  options.executors = available_executors();
  return options;
}

void check_names(const Graph& g, const PlanOptions& options) {
  if (options.allow.empty() && options.forbid.empty()) return;
  std::set<std::string> known;
  for (const Node& n : g.nodes)
    if (n.stage >= 0) {
      const std::string& stage = g.stages[static_cast<std::size_t>(n.stage)].name;
      known.insert({std::string(name(n.op)), stage, composite_of(stage)});
    }
  plan_options_detail::check(known, "allow", options.allow);
  plan_options_detail::check(known, "forbid", options.forbid);
}

}  // namespace kfusion
