// From an object to its framework, once per type.
#include "kfusion/enumerators.hpp"
#include "python/arrays/array.hpp"
#include "python/arrays/foreign.hpp"
#include "python/arrays/numpy.hpp"
#include "python/arrays/own.hpp"
#include "python/arrays/type_table.hpp"

namespace kfusion::arrays {
namespace {

/// The package that defines an object's type.
std::string package_of(py::handle object) {
  const auto module = py::type::of(object).attr("__module__").cast<std::string>();
  return module.substr(0, module.find('.'));
}

std::string type_name(py::handle object) {
  const auto type = py::type::of(object);
  const auto module = type.attr("__module__").cast<std::string>(), name = type.attr("__qualname__").cast<std::string>();
  return module == "builtins" ? name : module + "." + name;
}

template <class Error = TypeError>
[[noreturn]] void refuse(const Call& call, const std::string& argument, py::handle object, const std::string& hint) {
  throw Error(call.says(argument + " must be a NumPy array or a DLPack tensor (torch, CuPy, JAX, ...), got " +
                        type_name(object) + "; " + hint));
}

bool is_instance_of(py::handle object, const char* module, const char* attribute) {
  const py::object m = loaded_module(module);
  return m && py::hasattr(m, attribute) && py::isinstance(object, m.attr(attribute));
}

bool is_exact_torch(py::handle object) {
  const py::object torch = loaded_module("torch");
  const py::handle type = py::type::handle_of(object);
  return type.is(torch.attr("Tensor")) || type.is(torch.attr("nn").attr("Parameter"));
}

/// The function that turns a DLPack export of ours into the caller's kind of array; None where there is none.
py::object find_from_dlpack(py::handle object) {
  if (py::hasattr(object, "__array_namespace__")) {
    const py::object space = object.attr("__array_namespace__")();
    if (py::hasattr(space, "from_dlpack")) return space.attr("from_dlpack");
  }
  const py::object root = loaded_module(package_of(object).c_str());
  return root && py::hasattr(root, "from_dlpack") ? py::object(root.attr("from_dlpack")) : py::none();
}

/// Types are few and frameworks small: what is made here lives as long as the process.
const Framework* keep(std::unique_ptr<Framework> f) { return f.release(); }

const Framework* resolve(const Call& call, const char* argument, py::handle x) {
  switch (library_of(x)) {
    case ArrayLibrary::kOwn:
      return &own_framework();
    case ArrayLibrary::kNumpy:
      if (is_instance_of(x, "numpy", "memmap")) return &numpy_framework();
      if (is_instance_of(x, "numpy.ma", "MaskedArray")) refuse(call, argument, x, "fill it first: x.filled(value)");
      refuse(call, argument, x, "convert it with numpy.asarray(x)");
    case ArrayLibrary::kTorch:
      if (is_exact_torch(x)) return &torch_framework();
      refuse<Foreign>(call, argument, x, "torch.Tensor subclasses are not supported: pass a plain tensor");
    case ArrayLibrary::kJax:
      if (is_instance_of(x, "jax.core", "Tracer"))
        refuse(call, argument, x, "it cannot be called inside jax.jit, grad or vmap: call it on concrete arrays");
      return keep(dlpack_framework("JAX", loaded_module("jax").attr("dlpack").attr("from_dlpack"),
                                   {.library = ArrayLibrary::kJax, .immutable = true}));
    case ArrayLibrary::kCupy:
      return &cupy_framework();
    case ArrayLibrary::kOther:
      break;
  }
  if (py::hasattr(x, "__dlpack__") && py::hasattr(x, "__dlpack_device__"))
    return keep(dlpack_framework(type_name(x), find_from_dlpack(x)));
  if (py::hasattr(x, "__cuda_array_interface__")) return &cuda_interface_framework();
  refuse(call, argument, x,
         py::hasattr(x, "to_numpy") ? "convert it with x.to_numpy()" : "convert it with numpy.asarray(x)");
}

}  // namespace

ArrayLibrary library_of(py::handle object) {
  if (is_own(object)) return ArrayLibrary::kOwn;
  if (is_numpy(object)) return ArrayLibrary::kNumpy;
  if (is_instance_of(object, "torch", "Tensor")) return ArrayLibrary::kTorch;
  if (is_instance_of(object, "jax", "Array")) return ArrayLibrary::kJax;
  return is_instance_of(object, "cupy", "ndarray") ? ArrayLibrary::kCupy : ArrayLibrary::kOther;
}

std::string library_name(py::handle object) {
  constexpr const char* kNames[] = {"numpy", "torch", "cupy", "jax", "kfusion"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ArrayLibrary::kOther));
  static_assert(kEnumerators<ArrayLibrary> == std::size(kNames) + 1);
  const ArrayLibrary library = library_of(object);
  return library == ArrayLibrary::kOther ? package_of(object) : kNames[static_cast<std::size_t>(library)];
}

py::object loaded_module(const char* name) {
  PyObject* key = PyUnicode_FromString(name);
  if (!key) throw py::error_already_set();
  PyObject* module = PyImport_GetModule(key);
  Py_DECREF(key);
  if (!module && PyErr_Occurred()) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(module);
}

const Framework& framework_of(const Call& call, const char* argument, py::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (is_plain_numpy_type(type)) return numpy_framework();

  static auto& known = *new TypeTable<const Framework*>;
  if (const auto* const found = known.find(type)) return **found;
  return *known.insert(type, resolve(call, argument, object));
}

Array borrow(Call& call, const char* argument, py::handle object) {
  Array a;
  borrow(call, argument, object, a);
  return a;
}

void borrow(Call& call, const char* argument, py::handle object, Array& a) {
  a.object = object;
  a.framework = &framework_of(call, argument, object);
  a.framework->borrow(call, argument, a);
  if (!call.takes(a.view.dtype)) throw wrong_dtype(call, argument, name(a.view.dtype));
}

}  // namespace kfusion::arrays
