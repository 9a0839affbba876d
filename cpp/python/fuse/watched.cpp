#include "python/fuse/watched.hpp"

#include <bit>
#include <cstring>

#include "python/fuse/weak.hpp"

namespace kfusion::fuse {
namespace {

namespace watched_detail {

/// 0 where there is an error: tensors without memory have no address, those of inference mode no version.
std::uint64_t integer(PyObject* object) {
  const auto number = py::reinterpret_steal<py::object>(object);
  const std::uint64_t value = number ? PyLong_AsUnsignedLongLongMask(number.ptr()) : 0;
  PyErr_Clear();
  return value;
}

PyObject* name(const char* text) { return PyUnicode_InternFromString(text); }

/// Memory that Python lends, while this lives; none where an array's elements do not lie one behind the other.
class Lent {
 public:
  explicit Lent(const py::handle& array) : is_lent_(PyObject_GetBuffer(array.ptr(), &view_, PyBUF_ND) == 0) {
    if (!is_lent_) PyErr_Clear();
  }
  ~Lent() {
    if (is_lent_) PyBuffer_Release(&view_);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  const Py_buffer* view() const { return is_lent_ ? &view_ : nullptr; }

 private:
  Py_buffer view_{};
  bool is_lent_;
};

/// Another word gives another value, and so does another lane.
std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  return std::rotl((lane ^ word) * 0x9E3779B97F4A7C15ULL, 29);
}

void add(std::array<std::uint64_t, 4>& lanes, const char* bytes, std::size_t size) {
  std::array<std::uint64_t, 4> words;
  for (; size >= sizeof words; bytes += sizeof words, size -= sizeof words) {
    std::memcpy(words.data(), bytes, sizeof words);
    for (std::size_t i = 0; i < words.size(); ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  words.fill(0);
  if (size) std::memcpy(words.data(), bytes, size);  // a 0-dimensional array has no shape to point at
  for (std::size_t i = 0; i < words.size(); ++i) lanes[i] = mixed(lanes[i], words[i] + size);
}

}  // namespace watched_detail
}  // namespace

using namespace watched_detail;

Watched::Watched(const py::handle& array, bool by_value, py::object elements)
    : is_tensor_(!PyObject_HasAttrString(array.ptr(), "tobytes")), by_value_(by_value) {
  if (!elements.is_none()) elements_ = std::move(elements);
  if (is_tensor_) state_ = state(array);
  if (elements_ || !is_tensor_) digest_ = digest(elements_ ? elements_ : array);
  array_ = py::reinterpret_steal<py::object>(PyWeakref_NewRef(array.ptr(), nullptr));
  if (!array_) throw py::error_already_set();
}

bool Watched::unchanged() const {
  const py::object array = referent(array_);
  if (!array || (is_tensor_ && state(array) != state_)) return false;
  return (!elements_ && is_tensor_) || digest(elements_ ? elements_ : array) == digest_;
}

Watched::Digest Watched::digest(const py::handle& array) {
  Digest lanes{1, 2, 3, 4};
  const Lent lent(array);
  if (const Py_buffer* const view = lent.view()) {
    add(lanes, reinterpret_cast<const char*>(view->shape), static_cast<std::size_t>(view->ndim) * sizeof(Py_ssize_t));
    add(lanes, static_cast<const char*>(view->buf), static_cast<std::size_t>(view->len));
    return lanes;
  }
  static PyObject* const tobytes = name("tobytes");
  const auto bytes = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(array.ptr(), tobytes));
  if (!bytes) throw py::error_already_set();
  add(lanes, PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr())));
  return lanes;
}

/// The dtype, which lives for ever, the address and, where no elements are compared, the number of changes in place.
Watched::State Watched::state(const py::handle& tensor) const {
  static PyObject *const dtype = name("dtype"), *const data_ptr = name("data_ptr"), *const version = name("_version");
  const auto type = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), dtype));
  if (!type) throw py::error_already_set();
  return {reinterpret_cast<std::uintptr_t>(type.ptr()), integer(PyObject_CallMethodNoArgs(tensor.ptr(), data_ptr)),
          by_value_ && !elements_ ? integer(PyObject_GetAttr(tensor.ptr(), version)) : 0};
}

}  // namespace kfusion::fuse
