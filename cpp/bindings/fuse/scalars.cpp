#include "bindings/fuse/scalars.hpp"

#include <algorithm>
#include <optional>

#include "bindings/fuse/weak.hpp"
#include "bindings/stl.hpp"
#include "kfusion/room.hpp"

namespace kfusion::fuse {
namespace {

namespace scalars_detail {

constexpr std::size_t kFewOperands = 4;
constexpr long long kExact = 1LL << 53;  // up to here a double holds every integer

std::optional<double> as_double(PyObject* value) {
  if (!PyLong_Check(value)) return PyFloat_AsDouble(value);
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0 || n > kExact || n < -kExact) return std::nullopt;
  return static_cast<double>(n);
}

}  // namespace scalars_detail
}  // namespace

using namespace scalars_detail;

Scalars::Scalars(const py::handle& instructions, const py::handle& parameters)
    : parameters_(parameters.cast<std::vector<int>>()) {
  for (const py::handle each : instructions) {
    const auto fields = each.cast<py::tuple>();
    Instruction instruction{fields[0], {}, fields[3]};
    const auto registers = fields[1].cast<py::tuple>(), constants = fields[2].cast<py::tuple>();
    for (std::size_t i = 0; i < registers.size(); ++i)
      instruction.operands.push_back({registers[i].cast<int>(), constants[i]});
    instructions_.push_back(std::move(instruction));
  }
}

const double* Scalars::evaluate(const Signature& s, std::pmr::vector<double>& room) const {
  if (is_empty()) return s.floats().data();
  std::pmr::vector<py::object> results(s.floats().get_allocator());
  results.reserve(instructions_.size());
  const auto value_of = [&](int number) {
    return number < kFirstResult ? s.number(number) : results[static_cast<std::size_t>(number - kFirstResult)].ptr();
  };
  for (const Instruction& i : instructions_) {
    Room<PyObject*, kFewOperands> values(i.operands.size());
    for (std::size_t k = 0; const Operand& o : i.operands)
      values[k++] = o.register_number < 0 ? o.constant.ptr() : value_of(o.register_number);
    results.push_back(py::reinterpret_steal<py::object>(
        PyObject_Vectorcall(i.function.ptr(), values.data(), i.operands.size(), nullptr)));
    if (!results.back() && i.operands.empty()) throw py::error_already_set();  // no function of the user's: a seed
    if (!results.back()) forget_error();  // the function itself will raise it, or catch it
    if (!results.back() || reinterpret_cast<PyObject*>(Py_TYPE(results.back().ptr())) != i.type.ptr()) return nullptr;
  }
  room.reserve(s.floats().size() + parameters_.size() + 1);  // where there are none, it is somewhere, too
  room.assign(s.floats().begin(),
              s.floats().begin() + static_cast<std::ptrdiff_t>(std::min(s.floats().size(), kMostFloats)));
  for (const int number : parameters_) {
    const auto value = as_double(value_of(number));
    if (!value) return nullptr;
    room.push_back(*value);
  }
  return room.data();
}

void Scalars::append_owned(std::vector<PyObject*>& to) const {
  for (const Instruction& i : instructions_) {
    to.push_back(i.function.ptr());
    for (const Operand& o : i.operands) to.push_back(o.constant.ptr());
  }
}

}  // namespace kfusion::fuse
