// The compiler of the CPU's kernels, which Python has.
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/bindings.hpp"
#include "cpu/machine_code/machine_code.hpp"
#include "python/gil.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

/// Python's functions live as long as the process: kernels may be compiled until it ends.
cpu::Compiler python_compiler(const py::function& compile, const py::function& identity) {
  const py::handle compile_object = compile.inc_ref(), identity_of = identity.inc_ref();
  return {[compile_object](const std::string& text, const cpu::ir::TargetFacts& target) {
            const py::gil_scoped_acquire locked;
            return compile_object(text, target.triple, target.cpu, target.features).cast<std::string>();
          },
          [identity_of] {
            const py::gil_scoped_acquire locked;
            return identity_of().cast<std::string>();
          }};
}

}  // namespace

void bind_machine_code(py::module_& m) {
  m.def(
      "set_compiler",
      [](const py::function& compile, const py::function& identity) {
        cpu::set_compiler(python_compiler(compile, identity));
      },
      py::arg("compile"), py::arg("identity"), R"(set_compiler(compile, identity)
--

Says what compiles the CPU's kernels.

Args:
    compile: (text, triple, cpu, features) -> object code, bytes.
    identity: () -> str, whatever changes when the compiler does; "" where there is none.
)");
}

}  // namespace kfusion
