// torch.Tensor and Parameter through DLPack's C exchange API (torch >= 2.10): no capsule, no Python call to borrow.
// Borrowing this way skips torch's own checks (gradients, lazy negation), so they stand here.
#include <pybind11/gil_safe_call_once.h>

#include "bindings/arrays/dlpack.hpp"

namespace kfusion::arrays {
namespace {

class Torch final : public Framework {
 public:
  Torch(dlpack::ExchangeApi* api, py::object torch)
      : api_(api),
        is_grad_enabled_(torch.attr("is_grad_enabled").cast<py::object>().release()),
        empty_strided_(torch.attr("empty_strided").cast<py::object>().release()),
        requires_grad_(py::str("requires_grad").release()),
        is_neg_(py::str("is_neg").release()) {}

  std::string name() const override { return "torch"; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    check(call, argument, a.object);
    dlpack::Tensor t;
    if (api_->dltensor_from_py_object_no_sync(a.object.ptr(), &t) != 0) refuse_layout(call, argument);
    fill_view(call, argument, t, a.view);
    a.view.read_only = false;
    if (a.view.device.cuda) call.stream(*this, a.view.device.index);
  }

  cuda::Stream current_stream(int device) const override {
    void* stream = nullptr;
    if (api_->current_work_stream(dlpack::kCuda, device, &stream) != 0) throw py::error_already_set();
    return reinterpret_cast<cuda::Stream>(stream);
  }

  Result empty_like(Call& call, const Array& like) const override {
    Result r{like.view, {}};
    dense_strides_like(like.view, r.view.strides);
    if (!is_c_contiguous(r.view)) return empty_strided(call, like, r.view);
    const dlpack::Tensor wanted = prototype(r.view);
    dlpack::ManagedTensorVersioned* managed = nullptr;
    std::string error;
    const auto set_error = [](void* text, const char* kind, const char* message) {
      *static_cast<std::string*>(text) = std::string(kind) + ": " + message;
    };
    if (api_->managed_tensor_allocator(const_cast<dlpack::Tensor*>(&wanted), &managed, &error, set_error) != 0)
      throw DeviceError(call.says("torch could not allocate the result: " + error));
    r.view.data = static_cast<std::byte*>(managed->dl_tensor.data);
    void* object = nullptr;
    if (api_->managed_tensor_to_py_object_no_sync(managed, &object) != 0) throw py::error_already_set();
    r.object = py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
    return r;
  }

 private:
  void check(const Call& call, const char* argument, py::handle x) const {
    if (x.attr(requires_grad_).ptr() == Py_True && is_grad_enabled_().ptr() == Py_True)
      throw std::runtime_error(call.says(std::string(argument) +
                                         " requires grad, and kfusion has no backward pass yet: call it under "
                                         "torch.no_grad(), or pass x.detach()"));
    if (x.attr(is_neg_)().ptr() == Py_True)
      throw TypeError(call.says(std::string(argument) +
                                " is a lazily negated view, its memory holds other values: pass x.resolve_neg()"));
  }

  [[noreturn]] static void refuse_layout(const Call& call, const char* argument) {
    py::error_already_set cause;  // takes torch's own error
    py::raise_from(cause, PyExc_TypeError,
                   call.says(std::string(argument) + " must be a plain strided tensor with memory of its own").c_str());
    throw py::error_already_set();
  }

  Result empty_strided(Call& call, const Array& like, const View& layout) const {
    const auto item = static_cast<std::int64_t>(item_bytes(layout.dtype));
    py::tuple shape(layout.ndim), strides(layout.ndim);
    for (int d = 0; d < layout.ndim; ++d) {
      shape[d] = layout.shape[d];
      strides[d] = layout.strides[d] / item;
    }
    Array fresh;
    const py::object tensor = empty_strided_(shape, strides, py::arg("dtype") = like.object.attr("dtype"),
                                             py::arg("device") = like.object.attr("device"));
    fresh.object = tensor;
    borrow(call, "out", fresh);
    return {fresh.view, tensor};
  }

  dlpack::ExchangeApi* api_;
  py::handle is_grad_enabled_, empty_strided_, requires_grad_, is_neg_;  // kept for the life of the process
};

}  // namespace

const Framework* torch_framework() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<const Framework*> storage;
  return storage
      .call_once_and_store_result([]() -> const Framework* {
        const py::object torch = loaded_module("torch");
        const py::object capsule = py::getattr(torch.attr("Tensor"), "__dlpack_c_exchange_api__", py::none());
        if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
        auto* api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        while (api && api->version.major != dlpack::kMajor) api = api->prev_api;
        return api ? new Torch(api, torch) : nullptr;
      })
      .get_stored();
}

}  // namespace kfusion::arrays
