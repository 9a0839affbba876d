#include "python/fuse/scalars.hpp"

#include <algorithm>
#include <optional>

#include "kfusion/room.hpp"
#include "python/fuse/weak.hpp"
#include "python/stl.hpp"

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

Scalars::Evaluated Scalars::evaluate(const Signature& s, std::pmr::vector<double>& room) const {
  if (is_empty()) return {Evaluated::kAsTraced, -1, s.floats().data()};
  std::pmr::vector<py::object> results(s.floats().get_allocator());
  results.reserve(instructions_.size());
  const auto value_of = [&](int number) {
    return number < kFirstResult ? s.number(number) : results[static_cast<std::size_t>(number - kFirstResult)].ptr();
  };
  for (const Instruction& i : instructions_) {
    if (i.operands.empty()) {
      results.push_back(py::none());
      continue;
    }
    Room<PyObject*, kFewOperands> values(i.operands.size());
    for (std::size_t k = 0; const Operand& o : i.operands)
      values[k++] = o.register_number < 0 ? o.constant.ptr() : value_of(o.register_number);
    results.push_back(py::reinterpret_steal<py::object>(
        PyObject_Vectorcall(i.function.ptr(), values.data(), i.operands.size(), nullptr)));
    const py::object& result = results.back();
    if (!result) forget_error();  // the function itself will raise it, or catch it
    const bool is_answer = i.is_comparison();
    const PyTypeObject* type =
        is_answer ? Py_TYPE(i.expected.ptr()) : reinterpret_cast<PyTypeObject*>(i.expected.ptr());
    if (!result || Py_TYPE(result.ptr()) != type) return {Evaluated::kOtherwise};
    if (is_answer && !result.is(i.expected)) return {Evaluated::kOtherAnswer, static_cast<int>(results.size()) - 1};
  }
  room.reserve(s.floats().size() + parameters_.size() + 1);  // where there are none, it is somewhere, too
  room.assign(s.floats().begin(),
              s.floats().begin() + static_cast<std::ptrdiff_t>(std::min(s.floats().size(), kMostFloats)));
  for (const int number : parameters_) {
    const std::optional<double> value = value_of(number) == Py_None ? 0.0 : as_double(value_of(number));
    if (!value) return {Evaluated::kOtherwise};
    room.push_back(*value);
  }
  return {Evaluated::kAsTraced, -1, room.data()};
}

void Scalars::draw(std::pmr::vector<double>& room) const {
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    if (parameters_[k] < kFirstResult) continue;
    const Instruction& i = instructions_[static_cast<std::size_t>(parameters_[k] - kFirstResult)];
    if (i.operands.empty()) room[room.size() - parameters_.size() + k] = i.function().cast<double>();
  }
}

void Scalars::append_owned(std::vector<PyObject*>& to) const {
  for (const Instruction& i : instructions_) {
    to.push_back(i.function.ptr());
    for (const Operand& o : i.operands) to.push_back(o.constant.ptr());
  }
}

}  // namespace kfusion::fuse
