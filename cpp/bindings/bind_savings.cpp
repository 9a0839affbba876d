#include <vector>

#include "bindings/bindings.hpp"
#include "kfusion/error.hpp"
#include "python/records/savings_dict.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

constexpr const char* kDoc = R"(savings(ops, dtype_bytes=2)
--

What a chain of kernels moves through memory, one kernel per operation and fused into one.

    unfused_bytes    = dtype_bytes * sum(op["input_size"] + op["output_size"])
    fused_bytes      = dtype_bytes * (first op's input_size + last op's output_size)
    savings_bytes    = unfused_bytes - fused_bytes
    savings_pct      = savings_bytes / unfused_bytes * 100      (0.0 when that is 0)
    speedup_estimate = unfused_bytes / fused_bytes              (0 when that is 0)

The last two are rounded to 2 decimals. The estimate is the speedup of a kernel that does nothing but move bytes.

Args:
    ops: any iterable of mappings with "input_size" and "output_size" in elements (integers >= 0) and, if you like,
        a "name" for error messages; other keys are ignored.
    dtype_bytes: bytes of one element (an integer >= 1).

Returns:
    A dict with the five keys above; byte counts are integers. For no ops only the first four, all zero.

Raises:
    ValueError: a key is missing, a size is negative, or dtype_bytes < 1.
    TypeError: an op is no mapping, or a size or dtype_bytes is no integer.
    OverflowError: a byte count exceeds 2**63 - 1.

Source: the calculator of deep-ml.com, problem 424.
)";

/// An exact integer >= `least` (anything with __index__, bool excepted); `what` names it in messages.
std::int64_t to_integer(py::handle value, const std::string& what, int least) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr()))
    throw TypeError(what + " must be an integer, got " + py::repr(value).cast<std::string>());
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) throw py::error_already_set();
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  // Beyond 64 bits the number itself is not printed: it may have more digits than Python prints.
  if (overflow > 0) throw std::overflow_error(what + " must be at most 2**63 - 1");
  if (overflow < 0 || n < least)
    throw ValueError(what + " must be >= " + std::to_string(least) + (overflow ? "" : ", got " + std::to_string(n)));
  return n;
}

/// op[key], or an empty object where the mapping has no such key (asked first: a defaultdict would gain it).
py::object find(py::handle op, const char* key) {
  const int has = PySequence_Contains(op.ptr(), py::str(key).ptr());
  if (has < 0) throw py::error_already_set();
  if (!has) return {};
  const auto value = py::reinterpret_steal<py::object>(PyMapping_GetItemString(op.ptr(), key));
  if (!value) throw py::error_already_set();
  return value;
}

std::int64_t read_size(py::handle op, const std::string& where, const char* key) {
  const py::object value = find(op, key);
  if (!value) throw ValueError(where + " must have the key \"" + key + "\"");
  return to_integer(value, where + ": " + key, 0);
}

ChainOp read_op(py::handle op, std::size_t index) {
  std::string where = "kfusion.savings: ops[" + std::to_string(index) + "]";
  const auto mapping = py::module_::import("collections.abc").attr("Mapping");
  if (!py::isinstance(op, mapping))
    throw TypeError(where + " must be a mapping with the keys \"input_size\" and \"output_size\", got " +
                    py::repr(py::type::of(op)).cast<std::string>());
  if (const py::object name = find(op, "name")) where += " (" + py::repr(name).cast<std::string>() + ")";
  ChainOp result;
  result.input_size = read_size(op, where, "input_size");
  result.output_size = read_size(op, where, "output_size");
  return result;
}

py::dict savings_of(const py::object& ops, const py::object& dtype_bytes) {
  const std::int64_t item = to_integer(dtype_bytes, "kfusion.savings: dtype_bytes", 1);
  if (!PyObject_HasAttrString(ops.ptr(), "__iter__") && !PySequence_Check(ops.ptr()))
    throw TypeError("kfusion.savings: ops must be an iterable of mappings, got " +
                    py::repr(py::type::of(ops)).cast<std::string>());
  std::vector<ChainOp> chain;
  for (const py::handle op : ops) chain.push_back(read_op(op, chain.size()));

  Savings s;
  try {
    if (!chain.empty()) s = savings(chain, item);
  } catch (const std::overflow_error& e) {
    throw std::overflow_error("kfusion.savings: the ops move " + std::string(e.what()));
  }
  return to_dict(s, chain.empty());
}

}  // namespace

void bind_savings(py::module_& m) { m.def("savings", &savings_of, py::arg("ops"), py::arg("dtype_bytes") = 2, kDoc); }

}  // namespace kfusion
