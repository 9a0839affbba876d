// torch.Tensor and Parameter through DLPack's C exchange API (torch >= 2.10): no capsule, no Python call to borrow.
// Borrowing this way skips torch's own checks (gradients, lazy negation), so they stand here.
#include <pybind11/gil_safe_call_once.h>

#include <new>
#include <utility>

#include "cpu/buffer_pool.hpp"
#include "python/arrays/dlpack.hpp"
#include "python/arrays/library_functions.hpp"

namespace kfusion::arrays {
namespace {

/// torch's functions and interned names that a check needs, looked up once.
struct Names {
  py::handle is_grad_enabled, requires_grad, is_neg, forward_ad, current_level, no_level, is_any_autocast_enabled;
};

const Names& names() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Names> storage;
  return storage
      .call_once_and_store_result([] {
        return Names{loaded_module("torch").attr("is_grad_enabled").cast<py::object>().release(),
                     py::str("requires_grad").release(),
                     py::str("is_neg").release(),
                     loaded_module("torch").attr("autograd").attr("forward_ad").cast<py::object>().release(),
                     py::str("_current_level").release(),
                     py::int_(-1).release(),
                     loaded_module("torch").attr("_C").attr("_is_any_autocast_enabled").cast<py::object>().release()};
      })
      .get_stored();
}

/// Takes what one of Python's C functions returned, or its error. They are called here without pybind11's accessors,
/// which make a tuple for each call.
py::object checked(PyObject* result) {
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

bool is_true(const py::object& answer) { return answer.ptr() == Py_True; }

void check_tensor(const Call& call, const char* argument, py::handle x) {
  const Names& n = names();
  if (torch_requires_grad(x))
    throw RequiresGrad(call.says(std::string(argument) +
                                 " requires grad, and this function has no backward pass: call it under "
                                 "torch.no_grad(), pass x.detach(), or call it within a function that kf.fuse makes"));
  // Forward mode: a level is open only inside `with dual_level()`.
  const py::object level = checked(PyObject_GetAttr(n.forward_ad.ptr(), n.current_level.ptr()));
  if (!level.is(n.no_level) && !n.forward_ad.attr("unpack_dual")(x).attr("tangent").is_none())
    throw std::runtime_error(call.says(std::string(argument) +
                                       " carries a tangent, and kfusion has no derivatives in forward "
                                       "mode: pass forward_ad.unpack_dual(x).primal"));
  if (is_true(checked(PyObject_CallMethodNoArgs(x.ptr(), n.is_neg.ptr()))))
    throw TypeError(call.says(std::string(argument) +
                              " is a lazily negated view, its memory holds other values: pass x.resolve_neg()"));
}

/// An array of ours as torch takes it, with its own extents and strides.
struct Exported {
  explicit Exported(const View& v)
      : view(v), managed{{dlpack::kMajor, dlpack::kMinor}, this, &done, 0, prototype(view)} {
    const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
    for (int d = 0; d < v.ndim; ++d) view.strides[d] /= item;
    managed.dl_tensor.strides = view.strides;
  }
  static void done(dlpack::ManagedTensorVersioned* m) { delete static_cast<Exported*>(m->manager_ctx); }

  View view;
  dlpack::ManagedTensorVersioned managed;
};

/// Memory of the pool as a tensor, whose last owner gives it back: what malloc takes from the system, and gives back
/// for the next result, the system clears page by page, which takes longer than a kernel that fills it.
struct Pooled {
  explicit Pooled(const View& v)
      : view(v),
        bytes(static_cast<std::size_t>(v.nbytes())),
        managed{{dlpack::kMajor, dlpack::kMinor}, this, &done, 0, {}} {
    view.data = static_cast<std::byte*>(cpu::pool_allocate(bytes));
    if (view.data == nullptr) throw std::bad_alloc();
    const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
    for (int d = 0; d < v.ndim; ++d) view.strides[d] /= item;
    managed.dl_tensor = prototype(view);
    managed.dl_tensor.strides = view.strides;
  }
  ~Pooled() { cpu::pool_free(view.data, bytes); }
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;
  static void done(dlpack::ManagedTensorVersioned* m) { delete static_cast<Pooled*>(m->manager_ctx); }

  View view;
  std::size_t bytes;
  dlpack::ManagedTensorVersioned managed;
};

/// DLPack's C functions of torch, the first of their versions that is known here; nullptr where there are none.
dlpack::ExchangeApi* exchange_api(const py::object& torch) {
  const py::object capsule = py::getattr(torch.attr("Tensor"), "__dlpack_c_exchange_api__", py::none());
  dlpack::ExchangeApi* api = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->version.major != dlpack::kMajor) api = api->prev_api;
  return api;
}

/// Whether results of this thread are tensors that torch.empty_strided makes. See `results_by_torch`.
thread_local bool by_torch = false;

class Torch final : public Framework {
 public:
  Torch(dlpack::ExchangeApi* api, py::object torch)
      : api_(api),
        empty_strided_(torch.attr("empty_strided").cast<py::object>().release()),
        increment_version_(torch.attr("_C").attr("_increment_version").cast<py::object>().release()) {}

  std::string name() const override { return "torch"; }
  ArrayLibrary library() const override { return ArrayLibrary::kTorch; }
  bool knows_stream() const override { return true; }
  std::uint64_t mode() const override { return torch_autocast(); }
  LibraryFunction function_for(const Node& n, Place place) const override { return torch_function_for(n, place); }

  /// Tells autograd of the write, as an in-place operation of torch's own does: what torch.autograd.graph's function of
  /// that name calls, without its two frames of Python. It passes over inference tensors, which have no version.
  void written(py::handle out) const override {
    const py::tuple tensors = py::make_tuple(out);
    checked(PyObject_CallOneArg(increment_version_.ptr(), tensors.ptr()));
  }

  void borrow(Call& call, const char* argument, Array& a) const override {
    check_tensor(call, argument, a.object);
    dlpack::Tensor t;
    if (api_->dltensor_from_py_object_no_sync(a.object.ptr(), &t) != 0) refuse_layout(call, argument, a.object);
    std::int64_t shape[kMaxDims], strides[kMaxDims];
    if (call.takes_any()) a.stored = show_stored(t, shape, strides);
    if (a.stored >> 8 == dlpack::kComplex && a.object.attr("is_conj")().cast<bool>())
      throw TypeError(call.says(std::string(argument) + " is a lazily conjugated view, its memory holds other values: "
                                                        "pass x.resolve_conj()"));
    fill_view(call, argument, t, a.view);
    a.view.read_only = false;
    if (memory_of(a.view.place).has_streams) call.stream(*this, a.view.place.index);
  }

  Stream current_stream(int device) const override {
    void* stream = nullptr;
    if (api_->current_work_stream(dlpack::kCuda, device, &stream) != 0) throw py::error_already_set();
    return reinterpret_cast<Stream>(stream);
  }

  Result empty(const Call& call, const View& layout, const Array& like) const override {
    if (by_torch) return empty_strided(layout, like);
    if (layout.place.on_host() && layout.nbytes() >= static_cast<std::int64_t>(cpu::kPooledBytes))
      return pooled(layout);
    if (!is_c_contiguous(layout)) return empty_strided(layout, like);
    dlpack::Tensor wanted = prototype(layout);
    dlpack::ManagedTensorVersioned* managed = nullptr;
    std::string error;
    const auto set_error = [](void* text, const char* kind, const char* message) {
      *static_cast<std::string*>(text) = std::string(kind) + ": " + message;
    };
    if (api_->managed_tensor_allocator(&wanted, &managed, &error, set_error) != 0) {
      if (layout.place.on_host()) throw std::bad_alloc();
      throw DeviceError(call.says("torch could not allocate the result: " + error.substr(0, error.find('\n'))));
    }
    Result r{layout, {}};
    r.view.data = static_cast<std::byte*>(managed->dl_tensor.data);
    void* object = nullptr;
    if (api_->managed_tensor_to_py_object_no_sync(managed, &object) != 0) {
      managed->deleter(managed);
      throw py::error_already_set();
    }
    r.object = py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
    return r;
  }

 private:
  [[noreturn]] static void refuse_layout(const Call& call, const char* argument, py::handle tensor) {
    py::error_already_set cause;  // takes torch's own error
    const char* what =
        is_transformed(tensor)
            ? " must be a plain tensor, got one of torch.func (grad, vmap, ...), which stands for others: take "
              "kfusion.grad, value_and_grad or vjp for gradients"
            : " must be a plain strided tensor with memory of its own";
    py::raise_from(cause, PyExc_TypeError, call.says(argument + std::string(what)).c_str());
    throw py::error_already_set();
  }

  static bool is_transformed(py::handle tensor) {
    const py::object functorch = py::getattr(loaded_module("torch").attr("_C"), "_functorch", py::none());
    return !functorch.is_none() && functorch.attr("is_functorch_wrapped_tensor")(tensor).cast<bool>();
  }

  Result pooled(const View& layout) const {
    auto memory = std::make_unique<Pooled>(layout);
    Result r{layout, {}};
    r.view.data = memory->view.data;
    void* object = nullptr;
    if (api_->managed_tensor_to_py_object_no_sync(&memory->managed, &object) != 0) throw py::error_already_set();
    (void)memory.release();  // torch's
    r.object = py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
    return r;
  }

  Result empty_strided(const View& layout, const Array& like) const {
    const auto item = static_cast<std::int64_t>(item_bytes(layout.dtype));
    Result r{layout, empty_strided_(to_tuple(layout.ndim, layout.shape), to_tuple(layout.ndim, layout.strides, item),
                                    py::arg("dtype") = loaded_module("torch").attr(kfusion::name(layout.dtype)),
                                    py::arg("device") = like.object.attr("device"))};
    dlpack::Tensor t;
    if (api_->dltensor_from_py_object_no_sync(r.object.ptr(), &t) != 0) throw py::error_already_set();
    r.view.data = static_cast<std::byte*>(t.data) + (t.data ? t.byte_offset : 0);
    return r;
  }

  dlpack::ExchangeApi* api_;
  py::handle empty_strided_, increment_version_;  // kept for the life of the process
};

}  // namespace

bool set_results_by_torch(bool wanted) { return std::exchange(by_torch, wanted); }

bool torch_requires_grad(py::handle tensor) {
  const Names& n = names();
  return is_true(checked(PyObject_GetAttr(tensor.ptr(), n.requires_grad.ptr()))) && torch_grad_is_enabled();
}

bool torch_grad_is_enabled() { return is_true(checked(PyObject_CallNoArgs(names().is_grad_enabled.ptr()))); }

std::uint64_t torch_autocast() {
  if (!is_true(checked(PyObject_CallNoArgs(names().is_any_autocast_enabled.ptr())))) return 0;
  std::uint64_t state = 1;
  for (const char* device : {"cpu", "cuda"}) {
    const py::object torch = loaded_module("torch");
    const bool enabled = torch.attr("is_autocast_enabled")(device).cast<bool>();
    const py::object dtype = enabled ? torch.attr("get_autocast_dtype")(device) : py::none();
    state =
        state * 0x9E3779B97F4A7C15u + reinterpret_cast<std::uintptr_t>(dtype.ptr());  // torch's dtypes live for ever
  }
  return state;
}

py::object torch_tensor_over(const View& v) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<dlpack::ExchangeApi*> storage;
  dlpack::ExchangeApi* const api =
      storage.call_once_and_store_result([] { return exchange_api(loaded_module("torch")); }).get_stored();
  if (!api) return {};
  auto exported = std::make_unique<Exported>(v);
  void* object = nullptr;
  if (api->managed_tensor_to_py_object_no_sync(&exported->managed, &object) != 0) throw py::error_already_set();
  (void)exported.release();  // torch's
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

const Framework& torch_framework() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<const Framework*> storage;
  return *storage
              .call_once_and_store_result([]() -> const Framework* {
                const py::object torch = loaded_module("torch");
                if (dlpack::ExchangeApi* const api = exchange_api(torch)) return new Torch(api, torch);
                return dlpack_framework(
                           "torch", torch.attr("from_dlpack"),
                           {ArrayLibrary::kTorch, false, &check_tensor, &torch_autocast, &torch_function_for})
                    .release();
              })
              .get_stored();
}

}  // namespace kfusion::arrays
