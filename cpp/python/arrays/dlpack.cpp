#include "python/arrays/dlpack.hpp"

#include <algorithm>

#include "python/arrays/numpy.hpp"
#include "python/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

std::string dtype_text(dlpack::DataType t) {
  constexpr const char* kCodes[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string code = t.code < std::size(kCodes) ? kCodes[t.code] : "type code " + std::to_string(t.code) + ", ";
  return code + std::to_string(t.bits) + (t.lanes == 1 ? "" : "x" + std::to_string(t.lanes));
}

dlpack::DataType type_of(DType t) {
  const auto bits = static_cast<std::uint8_t>(item_bytes(t) * 8);
  if (t == DType::kBool) return {dlpack::kBool, bits, 1};
  if (is_integer(t)) return {dlpack::kInt, bits, 1};
  return {t == DType::kBFloat16 ? dlpack::kBfloat : dlpack::kFloat, bits, 1};
}

DType dtype_of(const Call& call, const char* argument, dlpack::DataType t) {
  for (int i = 0; i < kDTypes; ++i) {
    const dlpack::DataType ours = type_of(static_cast<DType>(i));
    if (t.code == ours.code && t.bits == ours.bits && t.lanes == ours.lanes) return static_cast<DType>(i);
  }
  throw wrong_dtype(call, argument, dtype_text(t));
}

Place place_of(dlpack::DeviceId d) { return on_cuda(d) ? Place{PlaceKind::kCuda, d.device_id} : Place{}; }

dlpack::DeviceId dlpack_device(const Call& call, const char* argument, py::handle object) {
  const py::object device = object.attr("__dlpack_device__")();
  int type, index;
  if (PyTuple_Check(device.ptr()) && PyArg_ParseTuple(device.ptr(), "ii", &type, &index)) return {type, index};
  PyErr_Clear();
  throw TypeError(call.says(std::string(argument) + ": __dlpack_device__ must return two integers, got " +
                            py::repr(device).cast<std::string>()));
}

/// Extents and strides as they are given, checked; an axis that nobody moves along has the stride of C order.
void fill_axes(const Call& call, const char* argument, const dlpack::Tensor& t, View& v) {
  if (t.ndim < 0 || t.ndim > kMaxDims)
    throw ValueError(call.says(std::string(argument) + " must have at most " + std::to_string(kMaxDims) +
                               " axes, got " + std::to_string(t.ndim)));
  if (t.ndim > 0 && !t.shape) throw TypeError(call.says(std::string(argument) + " must have a shape, got NULL"));
  v.ndim = t.ndim;
  std::copy_n(t.shape, v.ndim, v.shape);
  require_extents(call, argument, v);
  set_c_strides(v);
  if (!t.strides || v.size() == 0) return;
  for (int d = 0; d < v.ndim; ++d) {
    const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
    if (v.shape[d] > 1 && __builtin_mul_overflow(t.strides[d], item, &v.strides[d]))
      throw ValueError(call.says(std::string(argument) + " must have strides of less than 2^63 bytes, got " +
                                 std::to_string(t.strides[d]) + " elements"));
  }
}

template <class Managed>
void take(const Call& call, const char* argument, Array& a, Managed* managed) {
  // The tensor goes with the last user of the view; its deleter may run Python code, so the GIL must be held then.
  a.keep = std::shared_ptr<void>(managed, [](void* p) {
    auto* m = static_cast<Managed*>(p);
    if (m->deleter) m->deleter(m);
  });
  fill_view(call, argument, managed->dl_tensor, a.view);
}

/// Renames the capsule, which from then on does not delete its tensor: we do.
void take_capsule(const Call& call, const char* argument, Array& a, py::handle capsule) {
  PyObject* c = capsule.ptr();
  if (PyCapsule_IsValid(c, "dltensor_versioned")) {
    auto* m = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(c, "dltensor_versioned"));
    if (m->version.major != dlpack::kMajor)
      throw TypeError(call.says(std::string(argument) + " exports DLPack " + std::to_string(m->version.major) +
                                ", this version of kfusion reads " + std::to_string(dlpack::kMajor)));
    PyCapsule_SetName(c, "used_dltensor_versioned");
    a.view.read_only = m->flags & (dlpack::kReadOnly | dlpack::kIsCopied);  // writing to a copy would reach nobody
    return take(call, argument, a, m);
  }
  if (PyCapsule_IsValid(c, "dltensor")) {
    auto* m = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(c, "dltensor"));
    PyCapsule_SetName(c, "used_dltensor");
    a.view.read_only = false;
    return take(call, argument, a, m);
  }
  throw TypeError(call.says(std::string(argument) + ": __dlpack__ returned no DLPack capsule"));
}

class Dlpack final : public Framework {
 public:
  Dlpack(std::string name, py::object from_dlpack, const DlpackExtras& extras)
      : name_(std::move(name)), from_dlpack_(from_dlpack.release()), extras_(extras) {}

  std::string name() const override { return name_; }
  ArrayLibrary library() const override { return extras_.library; }
  bool immutable() const override { return extras_.immutable; }
  std::uint64_t mode() const override { return extras_.mode ? extras_.mode() : 0; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    if (extras_.check) extras_.check(call, argument, a.object);
    const Place place = place_of(dlpack_device(call, argument, a.object));
    std::optional<long long> stream;
    if (memory_of(place).has_streams) {
      const Stream ours = call.stream(*this, place.index);
      stream = ours == 0 ? 1 : static_cast<long long>(ours);  // 0 is ambiguous in DLPack
    }
    borrow_capsule(call, argument, a, stream);
    if (a.view.place != place)  // then nothing orders its memory
      throw TypeError(call.says(std::string(argument) + " must lie where __dlpack_device__ says (" + to_string(place) +
                                "), got a DLPack capsule of memory on " + to_string(a.view.place)));
  }

  Result empty(const Call&, const View& layout, const Array&) const override {
    if (!layout.place.on_host() || !from_dlpack_.is_none()) return own_empty(layout);
    return numpy_empty(layout, numpy_dtype(layout.dtype));
  }

  LibraryFunction function_for(const Node& n, Place place) const override {
    return extras_.function_for ? extras_.function_for(n, place) : nullptr;
  }

  py::object finish(Result& r) const override {
    return from_dlpack_.is_none() ? std::move(r.object) : py::object(from_dlpack_(r.object));
  }

 private:
  std::string name_;
  py::handle from_dlpack_;  // never released: frameworks live as long as the process
  DlpackExtras extras_;
};

}  // namespace

void fill_view(const Call& call, const char* argument, const dlpack::Tensor& t, View& v) {
  v.dtype = dtype_of(call, argument, t.dtype);
  const std::int32_t type = t.device.device_type;
  if (type != dlpack::kCpu && type != dlpack::kCudaHost && !on_cuda(t.device))
    throw TypeError(call.says(std::string(argument) + " must be on the CPU or a CUDA device, got DLPack device type " +
                              std::to_string(type)));
  v.place = place_of(t.device);
  fill_axes(call, argument, t, v);
  if (!t.data && v.size() > 0)
    throw TypeError(call.says(std::string(argument) + " must have memory, got a fake or meta tensor"));
  std::uintptr_t begin = 0;  // without memory there is nothing to be offset from
  if (t.data && __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(t.data), t.byte_offset, &begin))
    throw ValueError(call.says(std::string(argument) + " must lie within the address space, got a byte offset of " +
                               std::to_string(t.byte_offset)));
  v.data = reinterpret_cast<std::byte*>(begin);
  require_addressable(call, argument, v);
  require_aligned_on_device(call, argument, v);
}

std::uint16_t show_stored(dlpack::Tensor& t, std::int64_t* shape, std::int64_t* strides) {
  const auto [code, bits, lanes] = t.dtype;
  const auto stored = static_cast<std::uint16_t>(code << 8 | bits);
  if (lanes != 1 || t.ndim >= kMaxDims) return 0;
  if (code == dlpack::kComplex && (bits == 64 || bits == 128)) {
    shape[t.ndim] = 2, strides[t.ndim] = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      shape[d] = t.shape[d];
      strides[d] = t.strides ? 2 * t.strides[d] : strides[d + 1] * shape[d + 1];
    }
    t.dtype = {dlpack::kFloat, static_cast<std::uint8_t>(bits / 2), 1};
    t.shape = shape, t.strides = strides, ++t.ndim;
    return stored;
  }
  if (code != dlpack::kUInt && !(code == dlpack::kInt && bits < 32)) return 0;
  if (bits == 8) t.dtype = {dlpack::kBool, 8, 1};
  if (bits == 16) t.dtype = {dlpack::kFloat, 16, 1};
  if (bits == 32 || bits == 64) t.dtype = {dlpack::kInt, bits, 1};
  return stored;
}

dlpack::Tensor prototype(const View& v) {
  return {v.data,
          device_id(v.place),
          v.ndim,
          type_of(v.dtype),
          const_cast<std::int64_t*>(v.shape),  // nobody writes to it: the interface has one type for both directions
          nullptr,
          0};
}

void borrow_capsule(const Call& call, const char* argument, Array& a, std::optional<long long> stream) {
  py::dict keywords;
  if (stream) keywords["stream"] = *stream;
  const py::object method = a.object.attr("__dlpack__");
  py::object capsule;
  try {
    capsule = method(**keywords, py::arg("max_version") = py::make_tuple(dlpack::kMajor, dlpack::kMinor));
  } catch (py::error_already_set& e) {  // a producer from before DLPack 1.0 does not know the keyword
    if (!e.matches(PyExc_TypeError)) throw;
    capsule = method(**keywords);
  }
  take_capsule(call, argument, a, capsule);
}

std::unique_ptr<Framework> dlpack_framework(std::string name, py::object from_dlpack, const DlpackExtras& extras) {
  return std::make_unique<Dlpack>(std::move(name), std::move(from_dlpack), extras);
}

}  // namespace kfusion::arrays
