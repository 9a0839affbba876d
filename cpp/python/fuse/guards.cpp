#include "python/fuse/guards.hpp"

#include <algorithm>

#include "python/fuse/met.hpp"

namespace kfusion::fuse {
namespace {

namespace guards_detail {

constexpr std::size_t kMostEnvironments = 512;
constexpr std::size_t kManyArguments = 256;  // from then on those that are gone are looked for

/// Classes of Python's whose objects are read in a way of their own.
struct Known {
  PyTypeObject* deque = type("collections", "deque");
  PyTypeObject* default_dict = type("collections", "defaultdict");
  PyTypeObject* partial = type("functools", "partial");
  PyTypeObject* kept = type("functools", "_lru_cache_wrapper");
  PyTypeObject* local = type("_thread", "_local");

 private:
  static PyTypeObject* type(const char* module, const char* name) {
    return reinterpret_cast<PyTypeObject*>(py::object(py::module_::import(module).attr(name)).release().ptr());
  }
};

const Known& known() {
  static const Known* const types = new Known;
  return *types;
}

Guard::Kind kind_of(PyObject* owner, bool whole, bool asks) {
  if (asks) return Guard::Kind::kAsked;
  if (PyFunction_Check(owner)) return Guard::Kind::kFunction;
  if (whole) return Guard::Kind::kWhole;
  if (PyModule_Check(owner)) return Guard::Kind::kModule;
  return PyObject_TypeCheck(owner, known().local) ? Guard::Kind::kThreads : Guard::Kind::kObject;
}

Guard read(const py::tuple& guard) {
  auto owner = py::reinterpret_steal<py::object>(PyWeakref_NewRef(guard[0].ptr(), nullptr));
  if (!owner) throw py::error_already_set();
  const bool whole = guard[3].cast<bool>();
  return {std::move(owner), guard[1].cast<py::tuple>(), guard[2].cast<py::tuple>(), whole,
          kind_of(guard[0].ptr(), whole, guard[4].cast<bool>())};
}

/// Whether each item is the same object, or the same text.
bool are_same(const py::tuple& x, const py::tuple& y) {
  return std::ranges::equal(x, y, [](const py::handle& a, const py::handle& b) {
    return a.is(b) || (PyUnicode_Check(a.ptr()) && PyUnicode_Check(b.ptr()) && a.equal(b));
  });
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

constexpr int kDeepest = 100;  // of containers in containers: what lies deeper is looked at behind all else

/// An object's own attributes; empty where it has no __dict__.
py::object attributes_of(PyObject* owner) {
  if (Py_TYPE(owner)->tp_dictoffset == 0) return {};
  auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(owner, nullptr));
  if (!attributes) PyErr_Clear();
  return attributes;
}

/// What an object of this thread's own attributes has.
py::object attributes_of_thread(PyObject* owner) {
  static PyObject* const name = PyUnicode_InternFromString("__dict__");
  auto attributes = py::reinterpret_steal<py::object>(PyObject_GetAttr(owner, name));
  if (!attributes) PyErr_Clear();
  return attributes;
}

Py_ssize_t items_of(PyObject* value) {
  if (PyDict_Check(value)) return PyDict_GET_SIZE(value);
  if (PyList_Check(value) || PyTuple_Check(value)) return Py_SIZE(value);
  return PyAnySet_Check(value) ? PySet_GET_SIZE(value) : -1;
}

/// What an object refers to, but for its class: no code of its class runs.
std::vector<py::object> referents(PyObject* value) {
  std::vector<py::object> found;
  const auto keep = [](PyObject* object, void* to) {
    static_cast<std::vector<py::object>*>(to)->push_back(py::reinterpret_borrow<py::object>(object));
    return 0;
  };
  Py_TYPE(value)->tp_traverse(value, keep, &found);
  std::erase_if(found, [&](const py::object& o) { return o.ptr() == reinterpret_cast<PyObject*>(Py_TYPE(value)); });
  return found;
}

/// The dict of the results that functools.lru_cache keeps: of two that the function refers to, the first.
py::object kept_results(PyObject* function) {
  auto held = referents(function);
  const auto is_dict = [](const py::object& o) { return PyDict_CheckExact(o.ptr()); };
  const auto own = std::find_if(held.rbegin(), held.rend(), is_dict);
  const auto found = own == held.rend() ? own : std::find_if(own + 1, held.rend(), is_dict);
  return found == held.rend() ? py::object() : *found;
}

/// Whether objects of a class are compared by value, and hold nothing.
bool is_atom(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == Py_TYPE(Py_None) ||
         type == &PyBool_Type || type == &PyBytes_Type;
}

enum class Held { kNothing, kReferents, kReferent, kInContext, kResults, kSelf };

/// How an object of no container's class is read. One to which there are no weak references, such as a view of a dict
/// or an object with slots, stands for what it refers to.
Held held_by(PyObject* value) {
  PyTypeObject* const type = Py_TYPE(value);
  if (!PyType_IS_GC(type)) return Held::kNothing;
  if (type->tp_weaklistoffset == 0) {
    if (PyWeakref_Check(value)) return Held::kReferent;
    if (PyContextVar_CheckExact(value)) return Held::kInContext;
    const bool is_python = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
    return is_python || !type->tp_descr_get ? Held::kReferents : Held::kNothing;
  }
  if (PyCFunction_Check(value)) return Held::kSelf;
  for (const PyTypeObject* t = type; t; t = t->tp_base) {
    if (t == known().deque || t == known().partial) return Held::kReferents;
    if (t == known().kept) return Held::kResults;
    if (t == &_PyWeakref_RefType) return Held::kReferent;
  }
  return Held::kNothing;
}

template <class Visit>
bool each_part(PyObject* value, const Visit& visit, int depth = 0);

template <class Visit>
bool each_referent(const std::vector<py::object>& parts, const Visit& visit, int depth) {
  return std::ranges::all_of(parts, [&](const py::object& part) { return each_part(part.ptr(), visit, depth); }) &&
         visit(nullptr);
}

/// The object itself, or its class, and what it holds.
template <class Visit>
bool each_held(PyObject* value, const Visit& visit, int depth) {
  const auto part = [&](const py::object& held) { return visit(value) && each_part(held.ptr(), visit, depth); };
  switch (held_by(value)) {
    case Held::kNothing:
      return visit(value);
    case Held::kReferents:
      return visit(reinterpret_cast<PyObject*>(Py_TYPE(value))) && each_referent(referents(value), visit, depth);
    case Held::kReferent:
      return part(referent(py::reinterpret_borrow<py::object>(value)));
    case Held::kResults:
      return part(kept_results(value));
    case Held::kInContext: {
      PyObject* found = nullptr;
      if (PyContextVar_Get(value, nullptr, &found) < 0) throw py::error_already_set();
      return part(py::reinterpret_steal<py::object>(found));
    }
    case Held::kSelf: {
      PyObject* const self = PyCFunction_GET_SELF(value);
      const bool is_of_module = !self || PyModule_Check(self) || PyType_Check(self);
      return is_of_module ? visit(value) : part(py::reinterpret_borrow<py::object>(self));
    }
  }
  return visit(value);
}

/// Items of a dict in the order in which it is gone through.
template <class Visit>
bool each_entry(PyObject* dict, const Visit& visit, int depth) {
  if (PyODict_Check(dict) && PyDict_GET_SIZE(dict) > 1) {
    const auto keys = py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(dict));
    if (!keys) throw py::error_already_set();
    for (const py::handle key : py::iter(keys))
      if (!visit(key.ptr()) || !each_part(bound(dict, key.ptr()).ptr(), visit, depth)) return false;
    return true;
  }
  PyObject *key, *item;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &key, &item);)
    if (!visit(key) || !each_part(item, visit, depth)) return false;
  if (PyDict_CheckExact(dict) || !PyObject_TypeCheck(dict, known().default_dict)) return true;
  static PyObject* const factory = PyUnicode_InternFromString("default_factory");
  const auto made_by = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(dict, factory));
  if (!made_by) throw py::error_already_set();
  return each_part(made_by.ptr(), visit, depth);
}

/// What stands for a value. A container stands for what it holds, so that no environment keeps a replaced weight alive;
/// one that was met before, for its number, since they may hold one another.
template <class Visit>
bool each_part(PyObject* value, const Visit& visit, int depth) {
  if (!value || is_atom(Py_TYPE(value))) return visit(value);
  const Py_ssize_t count = items_of(value);
  const bool is_all_modules = count > 0 && value == PyImport_GetModuleDict();
  if (is_all_modules || (count < 0 && held_by(value) == Held::kNothing)) return visit(value);
  PyTypeObject* const type = Py_TYPE(value);
  if (depth == kDeepest) {
    visit.met.leave(value);
    return visit(reinterpret_cast<PyObject*>(type));
  }
  if (const Py_ssize_t number = count == 0 ? -1 : visit.met.number(value); number >= 0)
    return visit(Py_NotImplemented) && visit(py::int_(number).ptr());
  if (count < 0) return each_held(value, visit, depth + 1);
  if (!visit(reinterpret_cast<PyObject*>(type))) return false;
  const auto part = [&](PyObject* item) { return each_part(item, visit, depth + 1); };
  if (PyDict_Check(value)) {
    if (!each_entry(value, visit, depth + 1)) return false;
  } else if (PyAnySet_Check(value)) {
    for (const py::handle item : py::reinterpret_borrow<py::object>(value))
      if (!visit(item.ptr())) return false;
  } else {
    for (Py_ssize_t i = 0; i < Py_SIZE(value); ++i)
      if (!part(PyList_Check(value) ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i))) return false;
  }
  if (type->tp_dictoffset != 0 && type->tp_weaklistoffset == 0 && !part(attributes_of(value).ptr())) return false;
  return visit(nullptr);
}

/// Positional ones, nullptr, and the names and values of the others, nullptr: there may be more or fewer another time.
template <class Visit>
bool each_default(PyObject* function, const Visit& visit) {
  if (PyObject* const tuple = PyFunction_GET_DEFAULTS(function))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
      if (!each_part(PyTuple_GET_ITEM(tuple, i), visit)) return false;
  if (!visit(nullptr)) return false;
  if (PyObject* const dict = PyFunction_GET_KW_DEFAULTS(function)) {
    PyObject *name, *value;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &name, &value);)
      if (!visit(name) || !each_part(value, visit)) return false;
  }
  return visit(nullptr);
}

template <class Visit>
bool each_cell(PyObject* function, const py::tuple& positions, const Visit& visit) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions.ptr()); ++i) {
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions.ptr(), i));
    PyObject* const cell = PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(function), position);
    if (!each_part(py::reinterpret_steal<py::object>(PyCell_Get(cell)).ptr(), visit)) return false;
  }
  return true;
}

bool is_among(PyObject* names, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
    if (PyObject_RichCompareBool(PyTuple_GET_ITEM(names, i), name, Py_EQ) == 1) return true;
  return false;
}

/// The type of an object and its attributes, but where visit.counts(name, without) says no.
template <class Visit>
bool each_attribute(PyObject* owner, const py::tuple& without, const Visit& visit) {
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(owner, nullptr));
  if (!attributes) throw py::error_already_set();
  if (!visit(reinterpret_cast<PyObject*>(Py_TYPE(owner)))) return false;
  PyObject *name, *value;
  for (Py_ssize_t i = 0; PyDict_Next(attributes.ptr(), &i, &name, &value);) {
    if (!visit(name)) return false;
    if (visit.counts(name, without) && !each_part(value, visit)) return false;
  }
  return visit(nullptr);
}

/// What a class has for a name, or an object in a slot of its class: no code of the user's is run for that.
py::object of_class(PyObject* owner, PyObject* name) {
  const bool is_class = PyType_Check(owner);
  PyObject* const found = _PyType_Lookup(is_class ? reinterpret_cast<PyTypeObject*>(owner) : Py_TYPE(owner), name);
  if (!found) return {};
  if (is_class || Py_TYPE(found) != &PyMemberDescr_Type) return py::reinterpret_borrow<py::object>(found);
  auto held = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(owner, name));
  if (!held) PyErr_Clear();  // it is not set
  return held;
}

/// Whether a class has a `__getattr__` or `__getattribute__` of its own.
bool looks_up_itself(const PyTypeObject* type) {
  return type->tp_getattro != PyObject_GenericGetAttr && type->tp_getattro != PyType_Type.tp_getattro;
}

/// The type of an object, or a class itself, and what its attributes of these names are.
template <class Visit>
bool each_named(PyObject* owner, const py::object& attributes, const py::tuple& names, const Visit& visit) {
  PyTypeObject* const type = Py_TYPE(owner);
  if (!visit(reinterpret_cast<PyObject*>(type))) return false;
  if (looks_up_itself(type) && !visit(Py_NotImplemented)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.ptr()); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names.ptr(), i);
    py::object value;
    if (attributes) value = py::reinterpret_borrow<py::object>(bound(attributes.ptr(), name));
    if (!value) value = of_class(owner, name);
    if (!each_part(value.ptr(), visit)) return false;
  }
  return true;
}

/// What a function gives; nullptr in place of an error.
template <class Visit>
bool each_answer(PyObject* function, const py::tuple& arguments, const Visit& visit) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallObject(function, arguments.ptr()));
  if (!answer) forget_error();
  return each_part(answer.ptr(), visit);
}

template <class Visit>
bool each_global(PyObject* scope, const py::tuple& names, const Visit& visit) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.ptr()); ++i)
    if (!each_part(bound(scope, PyTuple_GET_ITEM(names.ptr(), i)).ptr(), visit)) return false;
  return true;
}

template <class Visit>
bool each_of_function(PyObject* f, const Guard& g, const Visit& visit) {
  return visit(PyFunction_GET_CODE(f)) && each_default(f, visit) &&
         each_global(PyFunction_GET_GLOBALS(f), g.names, visit) &&
         (!g.whole || each_part(reinterpret_cast<PyFunctionObject*>(f)->func_dict, visit)) &&
         each_cell(f, g.cells, visit);
}

/// Calls visit(object) for each value, nullptr where a name is bound to nothing, until that returns false. Returns
/// whether all were visited: not where the owner is gone.
template <class Visit>
bool each_value(const Guard& g, const Visit& visit) {
  const py::object alive = referent(g.owner);
  PyObject* const owner = alive.ptr();
  if (!owner) return false;
  switch (g.kind) {
    case Guard::Kind::kFunction:
      return each_of_function(owner, g, visit);
    case Guard::Kind::kModule:
      return each_global(PyModule_GetDict(owner), g.names, visit);
    case Guard::Kind::kWhole:
      return each_attribute(owner, g.names, visit);
    case Guard::Kind::kThreads:
      return each_named(owner, attributes_of_thread(owner), g.names, visit);
    case Guard::Kind::kAsked:
      return each_answer(owner, g.names, visit);
    case Guard::Kind::kObject:
      break;
  }
  return each_named(owner, PyType_Check(owner) ? py::object() : attributes_of(owner), g.names, visit);
}

/// What each_value gives of all guards.
template <class Visit>
bool each_of_all(const std::vector<Guard>& guards, const Visit& visit) {
  if (!std::ranges::all_of(guards, [&](const Guard& g) { return each_value(g, visit); })) return false;
  while (const py::object deeper = visit.met.take())
    if (!each_part(deeper.ptr(), visit)) return false;
  return true;
}

/// Keeps each value that it visits, and whether the values of names count.
struct Keep {
  Met& met;
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
  Met& met;
  std::vector<Remembered>::const_iterator& next;
  const std::vector<Remembered>::const_iterator end;
  std::vector<bool>::const_iterator& next_counts;
  const std::vector<bool>::const_iterator end_counts;

  bool operator()(PyObject* object) const { return next != end && (next++)->equals(object); }
  /// The answer that was kept for this name.
  bool counts(PyObject*, const py::tuple&) const { return next_counts == end_counts || *next_counts++; }
};

}  // namespace guards_detail
}  // namespace

using namespace guards_detail;

bool Guard::operator==(const Guard& o) const {
  return owner.is(o.owner) && kind == o.kind && whole == o.whole && are_same(names, o.names) && cells.equal(o.cells);
}

Environment::Environment(std::vector<Guard> guards, std::uint64_t number)
    : guards_(std::move(guards)), number_(number) {
  Met met;
  each_of_all(guards_, Keep{met, values_, counting_});
}

Environment::Environment(const py::handle& list) : Environment(read_all(list), Guards::kUnknown) {}

bool Environment::holds() const {
  auto next = values_.begin();
  auto counts = counting_.begin();
  Met met;
  return each_of_all(guards_, Compare{met, next, values_.end(), counts, counting_.end()});
}

bool Environment::is_dead() const {
  return std::ranges::any_of(guards_, [](const Guard& g) { return !referent(g.owner); }) ||
         std::ranges::any_of(values_, &Remembered::is_dead);
}

// Functions that are asked for what is set may let other threads run, which change the list: no lock is held then.

std::shared_ptr<const Environment> Guards::at(std::size_t place) const {
  const std::lock_guard lock(mutex_);
  return place < known_.size() ? known_[place] : nullptr;
}

void Guards::put_first(const std::shared_ptr<const Environment>& e) {
  const std::lock_guard lock(mutex_);
  if (const auto found = std::ranges::find(known_, e); found != known_.end())
    std::rotate(known_.begin(), found, found + 1);
}

std::uint64_t Guards::number() {
  for (std::size_t i = 0; const auto e = at(i); ++i) {
    if (!e->holds()) continue;
    if (i > 0) put_first(e);
    return e->number();
  }
  return kUnknown;
}

std::uint64_t Guards::next_number() {
  const std::lock_guard lock(mutex_);
  return ++last_number_;
}

bool Guards::update(const py::handle& list) {
  std::vector<Guard> guards = read_all(list);
  if (const auto first = at(0); first && first->guards(guards) && first->holds()) return false;
  const auto fresh = std::make_shared<const Environment>(std::move(guards), next_number());
  Environments removed;  // their objects die without the lock
  const std::lock_guard lock(mutex_);
  Environments kept{fresh};
  for (auto& e : known_) (e->is_dead() || kept.size() == kMostEnvironments ? removed : kept).push_back(e);
  known_.swap(kept);
  removed.swap(kept);
  return true;
}

std::shared_ptr<const Environment> Guards::held(std::uint64_t number) {
  auto first = at(0);
  return first && first->number() == number && first->holds() ? first : nullptr;
}

void Guards::clear() {
  Environments old;
  const std::lock_guard lock(mutex_);
  known_.swap(old);
}

std::shared_ptr<GuardsOfArguments::Of> GuardsOfArguments::find(PyObject* object) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(object);
  return found != known_.end() && referent(found->second->weak).ptr() == object ? found->second : nullptr;
}

std::uint64_t GuardsOfArguments::number(PyObject* object) {
  const auto of = find(object);
  return of ? of->guards.number() : Guards::kUnknown;
}

bool GuardsOfArguments::update(PyObject* object, const py::handle& list) {
  if (const auto of = find(object)) return of->guards.update(list);
  auto fresh = std::make_shared<Of>();
  fresh->weak = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
  if (!fresh->weak) throw py::error_already_set();
  fresh->guards.update(list);
  std::vector<std::shared_ptr<Of>> removed;  // these die without the lock
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kManyArguments)
    for (auto i = known_.begin(); i != known_.end();) {
      const bool is_gone = !referent(i->second->weak);
      if (is_gone) removed.push_back(std::move(i->second));
      i = is_gone ? known_.erase(i) : std::next(i);
    }
  std::swap(known_[object], fresh);
  return true;
}

std::shared_ptr<const Environment> GuardsOfArguments::held(PyObject* object, std::uint64_t number) {
  const auto of = find(object);
  return of ? of->guards.held(number) : nullptr;
}

void GuardsOfArguments::clear() {
  Known old;
  const std::lock_guard lock(mutex_);
  known_.swap(old);
}

}  // namespace kfusion::fuse
