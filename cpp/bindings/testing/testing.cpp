#include "bindings/testing/testing.hpp"

namespace kfusion::testing {

void bind(pybind11::module_& m) {
  bind_switches(m);
  bind_executors(m);
  bind_compiler(m);
  bind_cpu_ir(m);
  bind_machine_code(m);
  bind_lower(m);
  bind_fused_kernels(m);
}

}  // namespace kfusion::testing
