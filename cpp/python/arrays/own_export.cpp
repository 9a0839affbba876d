// How other libraries take a DeviceArray: DLPack and the CUDA array interface.
#include "python/arrays/dlpack.hpp"
#include "python/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

/// What an export keeps alive: the memory, and the extents that the tensor points to.
template <class Managed>
struct Export {
  Managed managed;
  std::shared_ptr<Buffer> buffer;
  View view;
  std::int64_t strides[kMaxDims];  // in elements
};

template <class Managed>
Managed* make_export(const DeviceArray& a) {
  auto* e = new Export<Managed>{{}, a.buffer, a.view, {}};
  const auto item = static_cast<std::int64_t>(item_bytes(a.view.dtype));
  for (int d = 0; d < a.view.ndim; ++d) e->strides[d] = a.view.strides[d] / item;
  e->managed.dl_tensor = prototype(e->view);
  e->managed.dl_tensor.strides = e->strides;
  e->managed.manager_ctx = e;
  e->managed.deleter = [](Managed* m) { delete static_cast<Export<Managed>*>(m->manager_ctx); };
  return &e->managed;
}

template <class Managed>
constexpr const char* kUnused = "dltensor";
template <>
constexpr const char* kUnused<dlpack::ManagedTensorVersioned> = "dltensor_versioned";

/// A capsule that nobody has taken deletes its tensor; a taken one has been renamed.
template <class Managed>
py::capsule make_capsule(Managed* managed) {
  PyObject* capsule = PyCapsule_New(managed, kUnused<Managed>, [](PyObject* c) {
    if (!PyCapsule_IsValid(c, kUnused<Managed>)) return;
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(c, kUnused<Managed>));
    m->deleter(m);
  });
  if (!capsule) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::capsule>(capsule);
}

}  // namespace

py::capsule DeviceArray::dlpack(py::handle stream, py::handle max_version, py::handle dl_device,
                                py::handle copy) const {
  if (!copy.is_none() && copy.cast<bool>())
    throw py::buffer_error("kfusion.DeviceArray: __dlpack__(copy=True) is not supported");
  if (!dl_device.is_none()) {
    const auto wanted = dl_device.cast<std::pair<int, int>>();
    const dlpack::DeviceId ours = device_id(view.place);
    if (wanted != std::pair<int, int>(ours.device_type, ours.device_id))
      throw py::buffer_error("kfusion.DeviceArray: __dlpack__ exports on " + to_string(view.place) + " only");
  }
  if (const Memory& memory = memory_of(view.place); memory.has_streams) {
    // -1: the consumer synchronises itself. None: the legacy default stream, where our work is ordered anyway.
    const long long consumer = stream.is_none() ? 0 : stream.cast<long long>();
    if (consumer > 1) memory.wait(static_cast<Stream>(consumer), 0, view.place.index);
  }
  buffer->exported = true;
  if (!max_version.is_none() && max_version.cast<std::pair<unsigned, unsigned>>().first >= dlpack::kMajor) {
    auto* managed = make_export<dlpack::ManagedTensorVersioned>(*this);
    managed->version = {dlpack::kMajor, dlpack::kMinor};
    managed->flags = 0;
    return make_capsule(managed);
  }
  return make_capsule(make_export<dlpack::ManagedTensor>(*this));
}

py::dict DeviceArray::cuda_array_interface() const {
  const std::string type = typestr(view.dtype);
  if (view.place.on_host() || type.empty())
    throw py::attribute_error("kfusion.DeviceArray: the CUDA array interface has no " +
                              std::string(view.place.on_host() ? "host arrays" : "bfloat16"));
  py::dict d;
  d["shape"] = to_tuple(view.ndim, view.shape);
  d["strides"] = to_tuple(view.ndim, view.strides);
  d["typestr"] = type;
  d["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(view.data), false);
  d["version"] = 3;
  d["stream"] = 1;
  buffer->exported = true;
  return d;
}

}  // namespace kfusion::arrays
