#include "bindings/plan_options.hpp"

#include <pybind11/stl.h>

#include <set>

#include "kfusion/error.hpp"
#include "kfusion/plan/names.hpp"

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

std::vector<std::pair<std::string, std::string>> read_pairs(const std::string& name, py::handle value) {
  try {
    return value.cast<std::vector<std::pair<std::string, std::string>>>();
  } catch (const py::cast_error&) {
    throw TypeError(kWho + name + " must be pairs of names");
  }
}

PlanOptions read(const py::dict& options) {
  PlanOptions result;
  for (const auto& [key, value] : options) {
    const auto name = py::str(key).cast<std::string>();
    if (name == "fuse")
      result.fuse = read_flag(name, value);
    else if (name == "only_executable")
      result.only_executable = read_flag(name, value);
    else if (name == "allow")
      result.allow = read_pairs(name, value);
    else if (name == "forbid")
      result.forbid = read_pairs(name, value);
    else if (name == "max_inputs")
      result.max_inputs = read_limit(name, value);
    else if (name == "max_outputs")
      result.max_outputs = read_limit(name, value);
    else
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

PlanOptions read_options(const py::dict& options) { return plan_options_detail::read(options); }

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
