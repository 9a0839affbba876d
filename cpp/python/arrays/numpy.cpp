#include "python/arrays/numpy.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/buffer_pool.hpp"
#include "python/arrays/dlpack.hpp"
#include "python/arrays/library_functions.hpp"

namespace kfusion::arrays {
namespace {

// The recycling allocator as a NumPy data handler: the array owns its memory as any other does, and np.ndarray's
// destructor gives it back to the pool. A header of one cache line keeps the size, which ndarray.resize does not pass.
constexpr std::size_t kHeader = 64;

void* handler_malloc(void*, std::size_t bytes) {
  auto* block = static_cast<std::byte*>(cpu::pool_allocate(bytes + kHeader));
  if (!block) return nullptr;
  std::memcpy(block, &bytes, sizeof bytes);
  return block + kHeader;
}

std::size_t block_bytes(void* p) {
  std::size_t bytes;
  std::memcpy(&bytes, static_cast<std::byte*>(p) - kHeader, sizeof bytes);
  return bytes;
}

void handler_free(void*, void* p, std::size_t) {
  if (p) cpu::pool_free(static_cast<std::byte*>(p) - kHeader, block_bytes(p) + kHeader);
}

void* handler_calloc(void* context, std::size_t n, std::size_t item) {
  void* p = handler_malloc(context, n * item);
  if (p) std::memset(p, 0, n * item);
  return p;
}

void* handler_realloc(void* context, void* p, std::size_t bytes) {
  void* fresh = handler_malloc(context, bytes);
  if (fresh && p) {
    std::memcpy(fresh, p, std::min(bytes, block_bytes(p)));
    handler_free(context, p, 0);
  }
  return fresh;
}

PyObject* pooled_handler() {
  static PyDataMem_Handler handler = {
      "kfusion_pool", 1, {nullptr, handler_malloc, handler_calloc, handler_realloc, handler_free}};
  static PyObject* capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
  if (!capsule) throw py::error_already_set();
  return capsule;
}

/// Makes NumPy allocate from the pool for the current context, until the end of the scope.
class PooledAllocation {
 public:
  explicit PooledAllocation(bool pooled) {
    if (pooled && !(previous_ = PyDataMem_SetHandler(pooled_handler()))) throw py::error_already_set();
  }
  ~PooledAllocation() {
    if (!previous_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);  // an allocation that failed has set its error
    Py_XDECREF(PyDataMem_SetHandler(previous_));
    Py_DECREF(previous_);
    PyErr_Restore(type, value, trace);
  }
  PooledAllocation(const PooledAllocation&) = delete;
  PooledAllocation& operator=(const PooledAllocation&) = delete;

 private:
  PyObject* previous_ = nullptr;
};

bool is_bfloat16(const PyArray_Descr* d) {
  if (d->type_num < NPY_USERDEF || PyDataType_ELSIZE(d) != 2) return false;
  const char* dot = std::strrchr(d->typeobj->tp_name, '.');
  return std::strcmp(dot ? dot + 1 : d->typeobj->tp_name, "bfloat16") == 0;
}

DType dtype_of(const Call& call, const char* argument, const PyArray_Descr* d) {
  const bool native = PyArray_ISNBO(d->byteorder);
  if (native) {
    switch (d->type_num) {
      case NPY_FLOAT:
        return DType::kFloat32;
      case NPY_DOUBLE:
        return DType::kFloat64;
      case NPY_HALF:
        return DType::kFloat16;
      case NPY_BOOL:
        return DType::kBool;
      default:
        if (is_bfloat16(d)) return DType::kBFloat16;
    }
    // C's int, long and long long: two of them have one size.
    if (PyTypeNum_ISSIGNED(d->type_num) && PyDataType_ELSIZE(d) == 4) return DType::kInt32;
    if (PyTypeNum_ISSIGNED(d->type_num) && PyDataType_ELSIZE(d) == 8) return DType::kInt64;
  }
  const auto* object = reinterpret_cast<const PyObject*>(d);
  const auto came = py::str(py::handle(const_cast<PyObject*>(object))).cast<std::string>();
  const char* swapped = " (not this machine's byte order: x.astype(x.dtype.newbyteorder('=')))";
  throw wrong_dtype(call, argument, native ? came : came + swapped);
}

/// DLPack's type of numbers that graphs have no dtype for: small, unsigned and complex ones; 0 of all others.
std::uint16_t stored_type(const PyArray_Descr* d) {
  const auto bits = static_cast<int>(8 * PyDataType_ELSIZE(d));
  const auto of = [bits](dlpack::TypeCode code) { return static_cast<std::uint16_t>(code << 8 | bits); };
  if (!PyArray_ISNBO(d->byteorder)) return 0;
  if (PyTypeNum_ISUNSIGNED(d->type_num)) return of(dlpack::kUInt);
  if (d->type_num == NPY_BYTE || d->type_num == NPY_SHORT) return of(dlpack::kInt);
  return d->type_num == NPY_CFLOAT || d->type_num == NPY_CDOUBLE ? of(dlpack::kComplex) : std::uint16_t{0};
}

/// The dtype that such numbers are shown in: of their size, or of half of it.
DType shown_as(std::uint16_t stored) {
  const int bits = stored & 0xff;
  if (stored >> 8 == dlpack::kComplex) return bits == 64 ? DType::kFloat32 : DType::kFloat64;
  return bits == 8 ? DType::kBool : bits == 16 ? DType::kFloat16 : bits == 32 ? DType::kInt32 : DType::kInt64;
}

class Numpy final : public Framework {
 public:
  std::string name() const override { return "NumPy"; }
  ArrayLibrary library() const override { return ArrayLibrary::kNumpy; }
  LibraryFunction function_for(const Node& n, Place place) const override { return numpy_function_for(n, place); }

  void borrow(Call& call, const char* argument, Array& a) const override {
    auto* x = reinterpret_cast<PyArrayObject*>(a.object.ptr());
    View& v = a.view;
    a.stored = call.takes_any() && PyArray_NDIM(x) < kMaxDims ? stored_type(PyArray_DESCR(x)) : std::uint16_t{0};
    v.dtype = a.stored ? shown_as(a.stored) : dtype_of(call, argument, PyArray_DESCR(x));
    v.data = reinterpret_cast<std::byte*>(PyArray_DATA(x));
    v.read_only = !PyArray_ISWRITEABLE(x);
    v.ndim = PyArray_NDIM(x);
    std::copy_n(PyArray_DIMS(x), v.ndim, v.shape);
    std::copy_n(PyArray_STRIDES(x), v.ndim, v.strides);
    if (a.stored >> 8 == dlpack::kComplex) {
      v.shape[v.ndim] = 2, v.strides[v.ndim] = PyArray_ITEMSIZE(x) / 2;
      ++v.ndim;
    }
  }

  Result empty(const Call&, const View& layout, const Array& like) const override {
    if (layout.dtype != like.view.dtype || like.stored) return numpy_empty(layout, numpy_dtype(layout.dtype));
    auto* x = reinterpret_cast<PyArrayObject*>(like.object.ptr());
    return numpy_empty(layout, reinterpret_cast<PyObject*>(PyArray_DESCR(x)));
  }
};

}  // namespace

void import_numpy() {
  if (_import_array() < 0) throw py::error_already_set();
}

bool is_plain_numpy_type(PyTypeObject* type) { return type == &PyArray_Type; }
bool is_numpy(py::handle object) { return PyArray_Check(object.ptr()); }

py::object array_of_scalar(py::object x) {
  if (!PyArray_IsScalar(x.ptr(), Generic)) return x;
  PyObject* a = PyArray_FromScalar(x.ptr(), nullptr);
  if (!a) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(a);
}

DType dtype_of_numpy(const Call& call, const char* argument, py::handle dtype) {
  return dtype_of(call, argument, reinterpret_cast<const PyArray_Descr*>(dtype.ptr()));
}

py::object numpy_dtype(DType t) {
  if (t == DType::kBFloat16)
    return py::module_::import("numpy").attr("dtype")(py::module_::import("ml_dtypes").attr("bfloat16"));
  constexpr int kNumbers[] = {NPY_HALF, 0, NPY_FLOAT, NPY_DOUBLE, NPY_BOOL, NPY_INT32, NPY_INT64};
  static_assert(std::size(kNumbers) == kDTypes);
  const int number = kNumbers[static_cast<int>(t)];
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyArray_DescrFromType(number)));
}

Result numpy_empty(const View& layout, py::handle dtype) {
  Result r{layout, {}};
  r.view.place = {};
  const auto bytes = static_cast<std::size_t>(layout.nbytes());
  const PooledAllocation scope(bytes >= cpu::kPooledBytes);
  Py_INCREF(dtype.ptr());  // stolen by the call
  PyObject* a = PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype.ptr()), layout.ndim,
                                     r.view.shape, r.view.strides, nullptr, 0, nullptr);
  if (!a) throw py::error_already_set();
  r.object = py::reinterpret_steal<py::object>(a);
  r.view.data = reinterpret_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(a)));
  return r;
}

py::object numpy_view(const View& v) {
  View shape = v;  // NumPy takes pointers to mutable extents
  py::object dtype = numpy_dtype(v.dtype);
  PyObject* a = PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype.release().ptr()), v.ndim,
                                     shape.shape, shape.strides, v.data, NPY_ARRAY_WRITEABLE, nullptr);
  if (!a) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(a);
}

const Framework& numpy_framework() {
  static const auto& framework = *new Numpy;  // not destroyed: threads may still run at exit
  return framework;
}

}  // namespace kfusion::arrays
