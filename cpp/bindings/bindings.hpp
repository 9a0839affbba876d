#pragma once
#include <pybind11/pybind11.h>

namespace kfusion {

class GraphBuilder;

void bind_errors(pybind11::module_& m);
void bind_savings(pybind11::module_& m);
void bind_copy(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_device_array(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_gradients(pybind11::class_<GraphBuilder>& c);
void bind_reference(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_executors(pybind11::module_& m);
void bind_compiler(pybind11::module_& m);
void bind_machine_code(pybind11::module_& m);
void bind_codegen(pybind11::module_& m);
void bind_tuning(pybind11::module_& m);
void bind_fuse(pybind11::module_& m);
void bind_jax(pybind11::module_& m);
/// Last: of all functions of a module.
void bind_messages(pybind11::module_& m);

}  // namespace kfusion
