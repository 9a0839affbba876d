#include "bindings/fuse/guards.hpp"

#include <algorithm>

namespace kfusion::fuse {
namespace {

namespace guards_detail {

constexpr std::size_t kMostEnvironments = 512;

Guard read(const py::tuple& guard) {
  auto owner = py::reinterpret_steal<py::object>(PyWeakref_NewRef(guard[0].ptr(), nullptr));
  if (!owner) throw py::error_already_set();
  return {std::move(owner), guard[1].cast<py::tuple>(), guard[2].cast<py::tuple>()};
}

std::vector<Guard> read_all(const py::handle& list) {
  std::vector<Guard> guards;
  for (const py::handle guard : list) guards.push_back(read(guard.cast<py::tuple>()));
  return guards;
}

#if PY_VERSION_HEX >= 0x030D0000
py::object bound(PyObject* scope, PyObject* name) {
  PyObject* found = nullptr;  // owned: without a GIL another thread may rebind the name now
  if (PyDict_GetItemRef(scope, name, &found) < 0) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}
#else
py::handle bound(PyObject* scope, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(scope, name);
  if (!found && PyErr_Occurred()) throw py::error_already_set();
  return found;
}
#endif

/// Positional ones, nullptr, and the names and values of the others, nullptr: there may be more or fewer another time.
template <class Visit>
bool each_default(PyObject* function, const Visit& visit) {
  if (PyObject* const tuple = PyFunction_GET_DEFAULTS(function))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
      if (!visit(PyTuple_GET_ITEM(tuple, i))) return false;
  if (!visit(nullptr)) return false;
  if (PyObject* const dict = PyFunction_GET_KW_DEFAULTS(function)) {
    PyObject *name, *value;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &name, &value);)
      if (!visit(name) || !visit(value)) return false;
  }
  return visit(nullptr);
}

template <class Visit>
bool each_cell(PyObject* function, const py::tuple& positions, const Visit& visit) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions.ptr()); ++i) {
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions.ptr(), i));
    PyObject* const cell = PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(function), position);
    if (!visit(py::reinterpret_steal<py::object>(PyCell_Get(cell)).ptr())) return false;
  }
  return true;
}

template <class Visit>
bool each_item(PyObject* value, const Visit& visit) {
  if (PyDict_Check(value) && PyDict_GET_SIZE(value) == 0) return visit(nullptr);
  if (PyDict_Check(value)) {
    PyObject *key, *item;
    for (Py_ssize_t i = 0; PyDict_Next(value, &i, &key, &item);)
      if (!visit(key) || !visit(item)) return false;
  } else {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i)
      if (!visit(PyList_GET_ITEM(value, i))) return false;
  }
  return visit(nullptr);
}

bool is_among(PyObject* names, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
    if (PyObject_RichCompareBool(PyTuple_GET_ITEM(names, i), name, Py_EQ) == 1) return true;
  return false;
}

/// The type of an object and its attributes, but where visit.counts(name, without) says no. Of dicts and lists what
/// they hold stands for them, so that no environment keeps a replaced weight alive.
template <class Visit>
bool each_attribute(PyObject* owner, const py::tuple& without, const Visit& visit) {
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(owner, nullptr));
  if (!attributes) throw py::error_already_set();
  if (!visit(reinterpret_cast<PyObject*>(Py_TYPE(owner)))) return false;
  PyObject *name, *value;
  for (Py_ssize_t i = 0; PyDict_Next(attributes.ptr(), &i, &name, &value);) {
    if (!visit(name)) return false;
    if (!visit.counts(name, without)) continue;
    const bool holds_others = PyDict_Check(value) || PyList_Check(value);
    if (!(holds_others ? each_item(value, visit) : visit(value))) return false;
  }
  return visit(nullptr);
}

/// Calls visit(object) for each value, nullptr where a name is bound to nothing, until that returns false. Returns
/// whether all were visited: not where the owner is gone.
template <class Visit>
bool each_value(const Guard& g, const Visit& visit) {
  const py::object alive = referent(g.owner);
  PyObject* const owner = alive.ptr();
  if (!owner) return false;
  const bool is_function = PyFunction_Check(owner);
  if (!is_function && !PyModule_Check(owner)) return each_attribute(owner, g.names, visit);
  if (is_function && !(visit(PyFunction_GET_CODE(owner)) && each_default(owner, visit))) return false;
  PyObject* const scope = is_function ? PyFunction_GET_GLOBALS(owner) : PyModule_GetDict(owner);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(g.names.ptr()); ++i)
    if (!visit(bound(scope, PyTuple_GET_ITEM(g.names.ptr(), i)).ptr())) return false;
  return each_cell(owner, g.cells, visit);
}

/// Keeps each value that it visits, and whether the values of names count.
struct Keep {
  std::vector<Remembered>& values;
  std::vector<bool>& counting;

  bool operator()(PyObject* object) const {
    values.emplace_back(object);
    return true;
  }
  bool counts(PyObject* name, const py::tuple& without) const {
    counting.push_back(!is_among(without.ptr(), name));
    return counting.back();
  }
};

/// Whether each value that it visits is the one that was kept.
struct Compare {
  std::vector<Remembered>::const_iterator& next;
  const std::vector<Remembered>::const_iterator end;
  std::vector<bool>::const_iterator& next_counts;
  const std::vector<bool>::const_iterator end_counts;

  bool operator()(PyObject* object) const { return next != end && (next++)->is(object); }
  /// Of a name that is the one that was kept.
  bool counts(PyObject*, const py::tuple&) const { return next_counts == end_counts || *next_counts++; }
};

}  // namespace guards_detail
}  // namespace

using namespace guards_detail;

Environment::Environment(std::vector<Guard> guards, std::uint64_t number)
    : guards_(std::move(guards)), number_(number) {
  for (const Guard& g : guards_) each_value(g, Keep{values_, counting_});
}

bool Environment::holds() const {
  auto next = values_.begin();
  auto counts = counting_.begin();
  const Compare is_next{next, values_.end(), counts, counting_.end()};
  return std::ranges::all_of(guards_, [&](const Guard& g) { return each_value(g, is_next); });
}

bool Environment::is_dead() const {
  return std::ranges::any_of(guards_, [](const Guard& g) { return !referent(g.owner); }) ||
         std::ranges::any_of(values_, &Remembered::is_dead);
}

std::uint64_t Guards::number() {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(known_, [](const auto& e) { return e->holds(); });
  if (found == known_.end()) return kUnknown;
  std::rotate(known_.begin(), found, found + 1);
  return known_.front()->number();
}

bool Guards::update(const py::handle& list) {
  std::vector<Guard> guards = read_all(list);
  Environments removed;  // their objects die without the lock
  const std::lock_guard lock(mutex_);
  if (!known_.empty() && known_.front()->guards(guards) && known_.front()->holds()) return false;
  Environments kept;
  for (auto& e : known_) (e->is_dead() || kept.size() + 1 == kMostEnvironments ? removed : kept).push_back(e);
  kept.insert(kept.begin(), std::make_shared<const Environment>(std::move(guards), ++last_number_));
  known_.swap(kept);
  removed.swap(kept);
  return true;
}

std::shared_ptr<const Environment> Guards::held(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const bool is_current = !known_.empty() && known_.front()->number() == number && known_.front()->holds();
  return is_current ? known_.front() : nullptr;
}

void Guards::clear() {
  Environments old;
  const std::lock_guard lock(mutex_);
  known_.swap(old);
}

}  // namespace kfusion::fuse
