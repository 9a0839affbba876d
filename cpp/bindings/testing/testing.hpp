// kfusion._core.testing: what only tests call. Wheels have none of it (KFUSION_TESTING).
#pragma once
#include <pybind11/pybind11.h>

namespace kfusion::testing {

void bind_switches(pybind11::module_& m);
void bind_executors(pybind11::module_& m);
void bind_compiler(pybind11::module_& m);
void bind_cpu_ir(pybind11::module_& m);
void bind_machine_code(pybind11::module_& m);
void bind_lower(pybind11::module_& m);
void bind_fused_kernels(pybind11::module_& m);

/// All of them.
void bind(pybind11::module_& m);

}  // namespace kfusion::testing
