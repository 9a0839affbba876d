#include "python/fuse/signature.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/buffer.hpp"
#include "python/arrays/numpy.hpp"
#include "python/arrays/type_table.hpp"

namespace kfusion::fuse {
namespace {

namespace signature_detail {

enum Tag : std::uint64_t {
  kArray = 1,
  kFloat,
  kNumpyFloat,
  kFloatValue,
  kInt,
  kComplex,
  kIntArgument,
  kIntValue,
  kOtherAnswer,
  kAllValues,
  kObject,
  kSequence,
  kFields,
  kDict,
  kKeyword,
  kKey,
  kOut,
  kEnvironment
};
enum class Leaf { kArray, kTraced, kNumpyFloat, kInt, kValue, kIdentity, kDataclass, kPlain };

constexpr int kMaxDepth = 32;  // of tuples in tuples

/// Whether a class has an attribute. Errors of its metaclass are raised, except that there is no such attribute.
bool has(PyTypeObject* type, const char* attribute) {
  if (py::reinterpret_steal<py::object>(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), attribute)))
    return true;
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return false;
}

bool is_subtype(PyTypeObject* type, py::handle of) {
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(of.ptr())) == 1;
}

bool is_torch_device(PyTypeObject* type) {
  const auto modules = py::module_::import("sys").attr("modules").cast<py::dict>();
  return modules.contains("torch") && is_subtype(type, modules["torch"].attr("device"));
}

/// Whether instances are objects that are taken apart, as Python knows it.
bool is_plain(PyTypeObject* type) {
  const py::handle kind(reinterpret_cast<PyObject*>(type));
  return py::module_::import("kfusion._graph.structure").attr("is_plain_type")(kind).cast<bool>();
}

Leaf classify(PyTypeObject* type) {
  if (has(type, "__kfusion_traced__")) return Leaf::kTraced;
  if (has(type, "__kfusion_int__")) return Leaf::kInt;
  const py::module_ numpy = py::module_::import("numpy");
  if (is_subtype(type, numpy.attr("generic"))) {
    const char* parameters[] = {"float16", "float32", "float64"};  // whose values a double holds
    for (const char* name : parameters)
      if (is_subtype(type, numpy.attr(name))) return Leaf::kNumpyFloat;
    return Leaf::kValue;
  }
  if (is_subtype(type, numpy.attr("ndarray")) || has(type, "__dlpack__") || has(type, "__cuda_array_interface__"))
    return Leaf::kArray;
  const auto is = [&](PyTypeObject& t) { return type == &t; };
  const bool is_value = is(PyBool_Type) || is(PyLong_Type) || is(PyUnicode_Type) || is(PyBytes_Type) ||
                        is(PySlice_Type) || is(PyRange_Type) || is(PyComplex_Type) || is(*Py_TYPE(Py_None));
  if (is_value || is_torch_device(type)) return Leaf::kValue;
  if (has(type, "__dataclass_fields__")) return type->tp_call ? Leaf::kIdentity : Leaf::kDataclass;
  return is_plain(type) ? Leaf::kPlain : Leaf::kIdentity;
}

Leaf leaf_of(PyTypeObject* type) {
  static auto& known = *new arrays::TypeTable<Leaf>;
  if (const Leaf* const found = known.find(type)) return *found;
  return known.insert(type, classify(type));
}

/// Whether what an object of a class holds or runs decides what is traced, where the object is an argument.
bool is_guarded(PyTypeObject* type) {
  static auto& known = *new arrays::TypeTable<bool>;
  if (const bool* const found = known.find(type)) return *found;
  const py::handle kind(reinterpret_cast<PyObject*>(type));
  return known.insert(type,
                      py::module_::import("kfusion._environment.guards").attr("is_guarded_type")(kind).cast<bool>());
}

bool is_aligned(const View& v) {
  const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(item) == 0;
  for (int d = 0; d < v.ndim; ++d) aligned = aligned && (v.shape[d] <= 1 || v.strides[d] % item == 0);
  return aligned;
}

void copy_items(const View& from, int axis, const std::byte* x, std::byte*& to) {
  if (axis == from.ndim) {
    std::memcpy(to, x, item_bytes(from.dtype));
    to += item_bytes(from.dtype);
    return;
  }
  for (std::int64_t i = 0; i < from.shape[axis]; ++i) copy_items(from, axis + 1, x + i * from.strides[axis], to);
}

/// A new reference; throws the error that Python has set where there is none.
template <class T>
T owned(PyObject* object) {
  if (!object) throw py::error_already_set();
  return py::reinterpret_steal<T>(object);
}

/// The attributes of a dataclass instance as tracing sees them. None where no attribute is an array: such an instance
/// is itself.
py::list parts_of(PyObject* value) {
  return py::module_::import("kfusion._graph.structure").attr("parts_of")(py::handle(value));
}

/// `a` in memory of its own, in C order.
void make_dense(Array& a) {
  const auto memory = std::make_shared<cpu::Buffer>(static_cast<std::size_t>(a.view.nbytes()));
  std::byte* to = memory->data();
  copy_items(a.view, 0, a.view.data, to);
  a.view.data = memory->data();
  set_c_strides(a.view);
  a.is_copy = true;
  a.keep = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(a.keep), memory);
}

enum class Search { kNothing, kFound, kTooDeep };

Search search_traced(PyObject* value, int depth);

template <class Items>
Search search_items(const Items& items, int depth) {
  for (const py::handle item : items)
    if (const Search found = search_traced(item.ptr(), depth + 1); found != Search::kNothing) return found;
  return Search::kNothing;
}

/// The first thing that is nested too deeply ends it: a list that holds itself twice has as many leaves as there are
/// ways into it. Lists and dicts are copied: without a GIL other threads may change them meanwhile.
Search search_traced(PyObject* value, int depth) {
  if (depth > kMaxDepth) return Search::kTooDeep;
  if (PyDict_Check(value)) return search_items(owned<py::list>(PyDict_Values(value)), depth);
  if (PyList_Check(value)) return search_items(owned<py::tuple>(PyList_AsTuple(value)), depth);
  if (PyTuple_Check(value)) return search_items(py::reinterpret_borrow<py::tuple>(value), depth);
  if (leaf_of(Py_TYPE(value)) == Leaf::kDataclass) return search_items(parts_of(value), depth);
  return leaf_of(Py_TYPE(value)) == Leaf::kTraced ? Search::kFound : Search::kNothing;
}

}  // namespace signature_detail
}  // namespace

using namespace signature_detail;

bool is_aligned_to_vectors(const View& v) {
  return reinterpret_cast<std::uintptr_t>(v.data) % memory_of(v.place).vector_bytes == 0;
}

bool has_traced(PyObject* value) { return search_traced(value, 0) == Search::kFound; }

Array borrow_readable(Call& call, const char* argument, py::handle object) {
  Array a;
  borrow_readable(call, argument, object, a);
  return a;
}

void borrow_readable(Call& call, const char* argument, py::handle object, Array& a) {
  arrays::borrow(call, argument, object, a);
  if (!is_aligned(a.view) && a.view.size() > 0) make_dense(a);
}

void append_words(const Array& a, std::pmr::vector<std::uint64_t>& words) {
  const View& v = a.view;
  const bool dense = is_c_contiguous(v);
  words.push_back(kArray | static_cast<std::uint64_t>(v.dtype) << 8 | static_cast<std::uint64_t>(v.ndim) << 16 |
                  std::uint64_t{dense} << 24 | std::uint64_t{is_aligned_to_vectors(v)} << 25 |
                  static_cast<std::uint64_t>(v.place.kind) << 26 | static_cast<std::uint64_t>(v.place.index) << 32);
  words.push_back(reinterpret_cast<std::uintptr_t>(a.framework) ^ std::uint64_t{a.stored} << 48);
  for (int d = 0; d < v.ndim; ++d) words.push_back(static_cast<std::uint64_t>(v.shape[d]));
  for (int d = 0; !dense && d < v.ndim; ++d)
    words.push_back(v.shape[d] == 1 ? 0 : static_cast<std::uint64_t>(v.strides[d]));
}

void Signature::add_array(const char* argument, PyObject* value, std::pmr::vector<Array>& to) {
  if (to.capacity() == 0) to.reserve(4);
  borrow_readable(call_, argument, value, to.emplace_back());
  append_words(to.back(), words_);
  const View& v = to.back().view;
  const std::size_t first = words_.size() - static_cast<std::size_t>(v.ndim);
  for (int d = 0; is_c_contiguous(v) && d < v.ndim; ++d)
    extents_.push_back({first + static_cast<std::size_t>(d), std::min<std::uint64_t>(words_[first + d], 2)});
}

void Signature::exchange_extents() {
  for (Extent& e : extents_) std::swap(words_[e.word], e.other);
}

void Signature::add_float(PyObject* object, double value, std::uint64_t tag) {
  words_.push_back(tag);
  floats_.push_back(value);
  float_objects_.push_back(object);
  if (floats_.size() > kMostFloats) words_.push_back(std::bit_cast<std::uint64_t>(value));
}

void Signature::add_object(PyObject* value, bool by_value) {
  std::uint64_t word = reinterpret_cast<std::uintptr_t>(value);
  if (by_value) {
    const Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1) PyErr_Clear();  // a slice, before Python 3.12
    word = static_cast<std::uint64_t>(hash) ^ reinterpret_cast<std::uintptr_t>(Py_TYPE(value));
  }
  words_.insert(words_.end(), {kObject, word});
  objects_.push_back({value, by_value});
}

void Signature::add_itself(PyObject* value) {
  add_object(value, false);
  const auto kind = PyType_Check(value) ? reinterpret_cast<PyTypeObject*>(value) : Py_TYPE(value);
  if (is_guarded(kind)) guarded_.push_back(value);
}

void Signature::add_items(const char* argument, PyObject* value) {
  if (++depth_ > kMaxDepth)
    throw ValueError(
        call_.says(std::string(argument) + " must not be nested more than " + std::to_string(kMaxDepth) + " deep"));
  const auto type = reinterpret_cast<std::uintptr_t>(Py_TYPE(value));
  // Lists and dicts are read from copies: borrowing an array may run code that changes them. Subclasses are asked for
  // their items as tracing asks them: their order may be their own.
  if (PyDict_Check(value)) {
    const auto items = owned<py::list>(PyDict_CheckExact(value) ? PyDict_Items(value) : PyMapping_Items(value));
    words_.insert(words_.end(), {kDict, type, items.size()});
    for (const py::handle item : items) {
      if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 2)
        throw TypeError(call_.says(std::string("the items of ") + argument + " must be pairs"));
      add_key(PyTuple_GET_ITEM(item.ptr(), 0));
      add(argument, PyTuple_GET_ITEM(item.ptr(), 1));
    }
    held_.push_back(items);
  } else if (!PyTuple_Check(value) && !PyList_Check(value)) {
    const py::list values = parts_of(value);
    words_.insert(words_.end(), {kFields, type, values.size()});
    for (const py::handle each : values) add(argument, each.ptr());
    held_.push_back(values);
  } else {
    const auto items = owned<py::tuple>(PySequence_Tuple(value));
    words_.insert(words_.end(), {kSequence, type, items.size()});
    for (const py::handle item : items) add(argument, item.ptr());
    if (!PyTuple_CheckExact(value)) held_.push_back(items);
    if (PyList_Check(value) && Py_TYPE(value)->tp_dictoffset != 0)  // tracing refuses those with attributes
      words_.push_back(
          static_cast<std::uint64_t>(PyDict_Size(owned<py::dict>(PyObject_GenericGetDict(value, nullptr)).ptr())));
  }
  --depth_;
}

/// A key of a dict, or a member of a slice or range: a value that is never a run-time parameter.
void Signature::add_key(PyObject* value) {
  if (PyFloat_CheckExact(value)) {
    words_.insert(words_.end(), {kKey, std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(value))});
  } else if (PyTuple_CheckExact(value)) {
    words_.insert(words_.end(), {kKey, static_cast<std::uint64_t>(PyTuple_GET_SIZE(value))});
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) add_key(PyTuple_GET_ITEM(value, i));
  } else {
    add_object(value, leaf_of(Py_TYPE(value)) == Leaf::kValue);
  }
}

/// Slices and ranges by their members: Python calls range(0, 3, 2) and range(0, 4, 2) equal.
void Signature::add_members(PyObject* value) {
  words_.insert(words_.end(), {kSequence, reinterpret_cast<std::uintptr_t>(Py_TYPE(value))});
  for (const char* name : {"start", "stop", "step"}) {
    held_.push_back(py::getattr(value, name));
    add_key(held_.back().ptr());
  }
}

void Signature::add(const char* argument, PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (arrays::is_plain_numpy_type(type)) return add_array(argument, value, arrays_);
  if (type == &PyFloat_Type) return add_float(value, PyFloat_AS_DOUBLE(value), kFloat);
  if (PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value)) return add_items(argument, value);
  if (type == &PyLong_Type) {
    int overflow = 0;
    const long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return add_object(value, true);
    words_.insert(words_.end(), {kInt, static_cast<std::uint64_t>(n)});
    return;
  }
  if (type == &PySlice_Type || type == &PyRange_Type) return add_members(value);
  switch (leaf_of(type)) {
    case Leaf::kArray:
      return add_array(argument, value, arrays_);
    case Leaf::kTraced:
      traced_ = true;
      return;
    case Leaf::kNumpyFloat:
      return add_float(value, PyFloat_AsDouble(value), kNumpyFloat ^ reinterpret_cast<std::uintptr_t>(type));
    case Leaf::kInt:
      if (add_int(value)) return;
      [[fallthrough]];
    case Leaf::kValue:
      if (PyComplex_CheckExact(value)) {  // -0j == 0j
        const Py_complex z = PyComplex_AsCComplex(value);
        words_.insert(words_.end(),
                      {kComplex, std::bit_cast<std::uint64_t>(z.real), std::bit_cast<std::uint64_t>(z.imag)});
        return;
      }
      return add_object(value, true);
    case Leaf::kDataclass:
      return py::len(parts_of(value)) > 0 ? add_items(argument, value) : add_itself(value);
    case Leaf::kPlain:
      has_plain_ = has_plain_ || std::strcmp(argument, "self") != 0;  // an instance whose method this is stays whole
      [[fallthrough]];
    case Leaf::kIdentity:
      return add_itself(value);
  }
}

void Signature::add_unless_int(const char* argument, PyObject* value) {
  if (!PyLong_CheckExact(value) || !add_int(value)) add(argument, value);
}

bool Signature::add_int(PyObject* value) {
  int overflow = 1;
  if (ints_.size() < kMostInts) PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;
  words_.push_back(kIntArgument);
  ints_.push_back(value);
  return true;
}

void Signature::add_keyword(PyObject* name, PyObject* value, bool reads_ints) {
  words_.push_back(kKeyword);
  add_object(name, true);
  const char* argument = PyUnicode_AsUTF8(name);
  if (!argument) throw py::error_already_set();
  reads_ints ? add_unless_int(argument, value) : add(argument, value);
}

void Signature::add_out(PyObject* value) {
  if (outs_.empty()) words_before_outs_ = words_.size(), outs_.reserve(2);
  words_.push_back(kOut);
  arrays::borrow(call_, "out", value, outs_.emplace_back());
  if (outs_.back().stored)
    throw TypeError(call_.says("out must be " + call_.dtypes_taken() + ", got numbers of another dtype"));
  if (!is_aligned(outs_.back().view)) throw ValueError(call_.says("out must be aligned to its elements"));
  append_words(outs_.back(), words_);
}

void Signature::set_environments(std::span<const std::uint64_t> numbers) {
  if (words_with_environment_ == 0) words_of_arguments_ = words_.size();
  words_.resize(words_of_arguments_);
  added_.clear();
  words_.push_back(kEnvironment);
  words_.insert(words_.end(), numbers.begin(), numbers.end());
  words_with_environment_ = words_.size();
}

void Signature::leave_outs() {
  const auto first = words_.begin();
  words_.resize(words_with_environment_);
  words_.erase(first + static_cast<std::ptrdiff_t>(words_before_outs_),
               first + static_cast<std::ptrdiff_t>(words_of_arguments_));
  std::erase_if(extents_, [&](const Extent& e) { return e.word >= words_before_outs_; });
  added_.clear();
}

void Signature::add_value(int number) {
  if (number < kFirstInt)
    words_.insert(words_.end(), {kFloatValue, std::bit_cast<std::uint64_t>(floats_[static_cast<std::size_t>(number)])});
  else
    words_.insert(words_.end(), {kIntValue, static_cast<std::uint64_t>(PyLong_AsLongLong(this->number(number)))});
  added_.push_back(number);
}

void Signature::add_values(const std::vector<int>& numbers) {
  for (const int number : numbers) add_value(number);
}

void Signature::add_other_answer(int number) {
  words_.insert(words_.end(), {kOtherAnswer, static_cast<std::uint64_t>(number)});
}

void Signature::add_all_values() {
  words_.push_back(kAllValues);
  for (std::size_t i = 0; i < std::min(floats_.size(), kMostFloats); ++i) add_value(static_cast<int>(i));
  for (std::size_t i = 0; i < ints_.size(); ++i) add_value(kFirstInt + static_cast<int>(i));
}

void Signature::remove_values(std::size_t count) {
  added_.resize(added_.size() - count);
  words_.resize(words_.size() - 2 * count);
}

std::uint64_t Signature::hash() const {
  std::uint64_t h = 0;
  for (const std::uint64_t w : words_) {
    h = (h ^ w) * 0x9E3779B97F4A7C15u;  // 2^64 over the golden ratio
    h ^= h >> 32;
  }
  return h;
}

}  // namespace kfusion::fuse
