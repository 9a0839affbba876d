// Machine code of the CPU, loaded.
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/testing/testing.hpp"
#include "cpu/machine_code/elf.hpp"
#include "cpu/machine_code/machine_code.hpp"
#include "python/gil.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace {

py::dict facts(const cpu::ir::TargetFacts& target) {
  py::dict d;
  d["triple"] = target.triple;
  d["cpu"] = target.cpu;
  d["features"] = target.features;
  d["vector_bytes"] = target.vector_bytes;
  return d;
}

/// A kernel's functions for tests, by their addresses.
class LoadedCode {
 public:
  explicit LoadedCode(std::shared_ptr<const cpu::MachineCode> code) : code_(std::move(code)) {}

  std::uintptr_t address(const std::string& function) const {
    return reinterpret_cast<std::uintptr_t>(code_->address(function));
  }
  std::size_t bytes() const { return code_->bytes(); }

 private:
  std::shared_ptr<const cpu::MachineCode> code_;
};

LoadedCode machine_code(const std::string& text) {
  const ReleaseGil unlocked;
  return LoadedCode(cpu::machine_code(text, cpu::ir::host_facts()));
}

LoadedCode load_object(const std::string& object) {
  return LoadedCode(std::make_shared<const cpu::MachineCode>(std::string_view(object)));
}

}  // namespace

void bind_machine_code(py::module_& m) {
  m.def(
      "can_compile",
      [] {
        const ReleaseGil unlocked;
        return cpu::can_compile();
      },
      "can_compile()\n--\n\nWhether the CPU's kernels can be compiled and run here; if not, stderr says why, once.\n");
  m.def("host_facts", [] { return facts(cpu::ir::host_facts()); }, R"(host_facts()
--

What the CPU's kernels are compiled for now: {triple, cpu, features, vector_bytes}, the first three as LLVM names them.
)");
  py::class_<LoadedCode>(m, "MachineCode", "The functions of one text, loaded. For tests.")
      .def("address", &LoadedCode::address, py::arg("function"),
           "address(self, function)\n--\n\nOf a function, as an integer.\n")
      .def_property_readonly("bytes", &LoadedCode::bytes, "That it takes in memory.");
  m.def("machine_code", &machine_code, py::arg("text"), R"(machine_code(text)
--

A text of LLVM's language compiled for this CPU and loaded.

Raises:
    RuntimeError: the text is wrong; the message has LLVM's, and its first lines.
)");
  m.def("load_object", &load_object, py::arg("object"), R"(load_object(object)
--

Object code for this CPU, loaded.

Raises:
    RuntimeError: it is damaged, or no object code of a kernel.
)");
}

}  // namespace kfusion::testing
