#include "bindings/arrays/dlpack.hpp"

#include <algorithm>

#include "bindings/arrays/numpy.hpp"
#include "bindings/arrays/own.hpp"

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
  Dlpack(std::string name, py::object from_dlpack, bool immutable, Check check)
      : name_(std::move(name)), from_dlpack_(from_dlpack.release()), immutable_(immutable), check_(check) {}

  std::string name() const override { return name_; }
  bool immutable() const override { return immutable_; }
  std::uint64_t mode() const override { return name_ == "torch" ? torch_autocast() : 0; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    if (check_) check_(call, argument, a.object);
    const dlpack::DeviceId device = dlpack_device(a.object);
    if (!on_cuda(device)) return borrow_capsule(call, argument, a, std::nullopt);
    const cuda::Stream stream = call.stream(*this, device.device_id);
    borrow_capsule(call, argument, a, stream == 0 ? 1 : static_cast<long long>(stream));  // 0 is ambiguous in DLPack
  }

  Result empty(const Call&, const View& layout, const Array&) const override {
    if (layout.place.cuda || !from_dlpack_.is_none()) return own_empty(layout);
    return numpy_empty(layout, numpy_dtype(layout.dtype));
  }

  py::object finish(Result& r) const override {
    return from_dlpack_.is_none() ? std::move(r.object) : py::object(from_dlpack_(r.object));
  }

 private:
  std::string name_;
  py::handle from_dlpack_;  // never released: frameworks live as long as the process
  bool immutable_;
  Check check_;
};

}  // namespace

void fill_view(const Call& call, const char* argument, const dlpack::Tensor& t, View& v) {
  v.dtype = dtype_of(call, argument, t.dtype);
  const std::int32_t type = t.device.device_type;
  if (type != dlpack::kCpu && type != dlpack::kCudaHost && !on_cuda(t.device))
    throw TypeError(call.says(std::string(argument) + " must be on the CPU or a CUDA device, got DLPack device type " +
                              std::to_string(type)));
  v.place = on_cuda(t.device) ? Place{true, t.device.device_id} : Place{};
  if (t.ndim > kMaxDims)
    throw ValueError(call.says(std::string(argument) + " must have at most " + std::to_string(kMaxDims) +
                               " axes, got " + std::to_string(t.ndim)));
  v.ndim = t.ndim;
  std::copy_n(t.shape, v.ndim, v.shape);
  set_c_strides(v);
  if (t.strides)
    for (int d = 0; d < v.ndim; ++d) v.strides[d] = t.strides[d] * static_cast<std::int64_t>(item_bytes(v.dtype));
  if (!t.data && v.size() > 0)
    throw TypeError(call.says(std::string(argument) + " must have memory, got a fake or meta tensor"));
  v.data = static_cast<std::byte*>(t.data) + (t.data ? t.byte_offset : 0);
  require_aligned_on_device(call, argument, v);
}

dlpack::Tensor prototype(const View& v) {
  return {v.data,
          {v.place.cuda ? dlpack::kCuda : dlpack::kCpu, v.place.index},
          v.ndim,
          type_of(v.dtype),
          const_cast<std::int64_t*>(v.shape),  // nobody writes to it: the interface has one type for both directions
          nullptr,
          0};
}

dlpack::DeviceId dlpack_device(py::handle object) {
  const auto device = object.attr("__dlpack_device__")().cast<py::tuple>();
  return {device[0].cast<std::int32_t>(), device[1].cast<std::int32_t>()};
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

std::unique_ptr<Framework> dlpack_framework(std::string name, py::object from_dlpack, bool immutable, Check check) {
  return std::make_unique<Dlpack>(std::move(name), std::move(from_dlpack), immutable, check);
}

}  // namespace kfusion::arrays
