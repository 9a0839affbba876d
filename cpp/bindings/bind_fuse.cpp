// FusedCallable as Python's type: how it is called, collected and described.
#include <cstddef>

#include "bindings/bindings.hpp"
#include "python/fuse/fused_callable.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace fuse_binding {

using fuse::FusedCallable;

constexpr const char* kClassDoc = R"(FusedCallable(name, parameters, options, takes_out, reads_ints, each=False)
--

A function that runs as the kernels of its plan. Subclasses say what it computes:

    _guards(*argument)
                 the functions and names that it depends on: a list of kfusion._environment.guards.Guard; with an object among
                 the arguments: what it depends on because of that
    _prepare(args, kwargs, strides, numbers, shapes, alike)
                 traces it: a kfusion._environment.calls.Prepared; its numbers may be parameters of kernels, or stay as they
                 are. strides and shapes are those of its arrays; alike is what _prepare has made of a call that differs
                 in shapes only, if there was one
    __wrapped__  the plain function, called where an argument is a traced value
    _taken_apart(args, kwargs, out, stream)
                 a call with objects among its arguments, or of a function that sets something beside its results
    _with_effects(error, args, kwargs, out, stream)
                 a call whose trace raised an error with __kfusion_effects__: the function does that

Args:
    name: for messages, which start with "kfusion.<name>: ".
    parameters: names of the positional parameters, likewise.
    options: dict of the plan's options, as for make_plan; "in_passes": it is a forward or backward pass.
    takes_out: whether calls have the keywords out= and stream=.
    reads_ints: whether ints among the arguments are numbers as floats are, and not known by their values.
    each: whether it is called by _each() only, for many sets of arguments.
)";

constexpr const char* kEachDoc = R"(_each(self, sets, names, stream=None)
--

Calls the function for many sets of arguments: elementwise work on them in one kernel for all sets, other work in order.
Nothing is written where one of the sets is refused.

Args:
    sets: list of tuples, the arguments of each call; the last ones by name.
    names: tuple of the names of those.
    stream: as for a call.

Returns:
    A list of the results, or None where all are None.
)";

/// nullptr before __init__, and while pybind11 lays the instance out: Python's collector can come by even then.
FusedCallable* made(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  if (!instance->simple_layout || !instance->simple_holder_constructed) return nullptr;
  return static_cast<FusedCallable*>(instance->simple_value_holder[0]);
}

FusedCallable& callable(PyObject* self) {
  FusedCallable* const f = made(self);
  if (!f) throw TypeError("kfusion: a FusedCallable whose __init__ was not called cannot be called");
  return *f;
}

PyObject* call(PyObject* self, PyObject* const* values, std::size_t count, PyObject* names) {
  try {
    FusedCallable& f = callable(self);
    return f.call(self, fuse::Given(values, static_cast<std::size_t>(PyVectorcall_NARGS(count)), names, f.takes_out()))
        .release()
        .ptr();
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

/// Where an instance has its vectorcall function: behind what pybind11 keeps in it.
constexpr Py_ssize_t kVectorcallOffset = sizeof(py::detail::instance);

PyObject* make_instance(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = py::detail::make_new_instance(type);
  if (!self) return nullptr;
  *reinterpret_cast<vectorcallfunc*>(reinterpret_cast<std::byte*>(self) + kVectorcallOffset) = &call;
#if PY_VERSION_HEX < 0x030C0000  // subclasses do not inherit it there
  if (type->tp_call == &PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
#endif
  return self;
}

/// Calls go to C++ as they are: through a method, each would make a tuple, a dict and a bound method, and ask pybind11
/// for types, which takes as long as a small kernel.
void let_python_call(PyTypeObject& type) {
  type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_basicsize = kVectorcallOffset + static_cast<Py_ssize_t>(sizeof(vectorcallfunc));
  type.tp_vectorcall_offset = kVectorcallOffset;
  type.tp_call = &PyVectorcall_Call;
  type.tp_new = &make_instance;
}

/// A function's globals hold the function: what is held here Python must be able to see.
void let_python_collect(PyTypeObject& type) {
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const FusedCallable* f = made(self);
    return f ? f->traverse([&](PyObject* object) { return visit(object, arg); }) : 0;
  };
  type.tp_clear = [](PyObject* self) {
    if (FusedCallable* f = made(self)) f->clear();
    return 0;
  };
}

py::object element_strides_of(py::handle array, const std::string& function_name, const std::string& argument) {
  fuse::Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  return arrays::strides_of(fuse::borrow_readable(call, argument.c_str(), array));
}

py::tuple array_spec(py::handle array, const std::string& function_name, const std::string& argument) {
  fuse::Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  const View v = fuse::borrow_readable(call, argument.c_str(), array).view;
  return py::make_tuple(arrays::to_tuple(v.ndim, v.shape), name(v.dtype), to_string(v.place));
}

}  // namespace fuse_binding
}  // namespace

void bind_fuse(py::module_& m) {
  using fuse_binding::FusedCallable;
  py::class_<FusedCallable>(m, "FusedCallable", py::custom_type_setup([](PyHeapTypeObject* type) {
                              fuse_binding::let_python_call(type->ht_type);
                              fuse_binding::let_python_collect(type->ht_type);
                            }),
                            fuse_binding::kClassDoc)
      .def(py::init<std::string, std::vector<std::string>, const py::dict&, bool, bool, bool>(), py::arg("name"),
           py::arg("parameters"), py::arg("options"), py::arg("takes_out"), py::arg("reads_ints"),
           py::arg("each") = false,
           "__init__(self, name, parameters, options, takes_out, reads_ints, each=False)\n--\n\n")
      .def(
          "_each",
          [](const py::object& self, const py::list& sets, const py::tuple& names, const py::object& stream) {
            return self.cast<FusedCallable&>().each(self, sets, names, stream);
          },
          py::arg("sets"), py::arg("names"), py::arg("stream") = py::none(), fuse_binding::kEachDoc)
      .def(
          "_cached", [](const FusedCallable& f) { return f.cached(); },
          "_cached(self)\n--\n\nThe number of signatures that it keeps.\n")
      .def(
          "_environment", [](const py::object& self) { return self.cast<FusedCallable&>().environment(self); },
          "_environment(self)\n--\n\nA number for what the function depends on beside its arguments, as it is now.\n")
      .def(
          "_take_apart", [](FusedCallable& f) { f.take_apart(); },
          "_take_apart(self)\n--\n\nFrom now on _taken_apart is asked for each call, until _clear.\n")
      .def("_clear", [](FusedCallable& f) { f.clear(); }, "_clear(self)\n--\n\nForgets all signatures.\n");
  py::class_<fuse::Environment>(m, "Environment", R"(Environment(guards)
--

What a list of kfusion._environment.guards.Guard says that a function depends on, as it is now.
)")
      .def(py::init<const py::handle&>(), py::arg("guards"), "__init__(self, guards)\n--\n\n")
      .def("holds", &fuse::Environment::holds, "holds(self)\n--\n\nWhether all of that is still so.\n");
  m.def("element_strides", &fuse_binding::element_strides_of, py::arg("array"), py::arg("function_name"),
        py::arg("argument"), R"(element_strides(array, function_name, argument)
--

Strides in elements of an array of any kind, None for C order (also where it must be copied to be read). Messages name
the function and the argument.
)");
  m.def("array_spec", &fuse_binding::array_spec, py::arg("array"), py::arg("function_name"), py::arg("argument"),
        R"(array_spec(array, function_name, argument)
--

(shape, dtype, place) of an array that may have no attributes for them, only DLPack's export or CUDA's array interface.
Messages name the function and the argument.
)");
  m.def("digest", &fuse::Watched::digest, py::arg("array"), R"(digest(array)
--

Four numbers that another shape or other elements of an array of NumPy's would change.
)");
}

}  // namespace kfusion
