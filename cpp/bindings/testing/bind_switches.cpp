// What runs kernels and lends memory, and how much of it is kept: looked at, and switched.
#include "bindings/testing/testing.hpp"
#include "cpu/blas.hpp"
#include "cpu/buffer_pool.hpp"
#include "cpu/control_group.hpp"
#include "cpu/isa.hpp"
#include "cpu/loops/loop_kernel.hpp"
#include "cpu/loops/loops_by.hpp"
#include "cpu/machine_code/vector_libm.hpp"
#include "python/gil.hpp"
#include "python/stl.hpp"
#include "runtime/lent.hpp"
#include "runtime/poison.hpp"

namespace py = pybind11;

namespace kfusion::testing {

void bind_switches(py::module_& m) {
  m.def(
      "blas_threads",
      []() -> std::optional<int> {
        const cpu::Blas* const blas = cpu::Blas::loaded();
        return blas ? std::optional(blas->threads()) : std::nullopt;
      },
      "blas_threads()\n--\n\nThe threads of the BLAS that blocks of products are computed by; None where this process "
      "has none.\n");
  m.def("set_isa", &cpu::set_isa, py::arg("name"), R"(set_isa(name)
--

Chooses the instruction set for the whole process. Not while another thread computes.

Raises:
    ValueError: this CPU does not have it.
)");
  m.def("loops_by", [] { return std::string(cpu::name(cpu::loops_by())); }, R"(loops_by()
--

What runs loops on the CPU: code that is "generated" for each kernel, or none: they are "interpreted". KFUSION_CPU sets it
at the start.
)");
  m.def("set_loops_by", &cpu::set_loops_by, py::arg("name"), R"(set_loops_by(name)
--

Chooses what runs the loops of plans that are made ready to run from now on.

Raises:
    ValueError: the name is neither.
)");
  m.def("left_to_interpreter", &cpu::left_to_interpreter, R"(left_to_interpreter()
--

How many kernels were left to the interpreter although loops are generated, by reason.
)");
  m.def("poison_memory", &set_poisons_memory, py::arg("on"), R"(poison_memory(on)
--

Whether fused calls fill fresh results and their working memory with a pattern before kernels run.
)");
  m.def("lend_everywhere", &set_lends_everywhere, py::arg("on"), R"(lend_everywhere(on)
--

Whether plans that are made ready to run from now on lend memory to each value between their kernels, and
make results when these are stored, as they do on GPUs for large values between functions of torch's.
)");
  m.def("use_vector_libm", &cpu::use_vector_libm, py::arg("on"), R"(use_vector_libm(on)
--

Whether functions of float64 come from the system's vector library, where it has one, or from its libm.
)");
  m.def(
      "pool_stats",
      [] {
        const cpu::PoolStats s = cpu::pool_stats();
        py::dict d;
        d["held_bytes"] = s.held_bytes;
        d["limit_bytes"] = s.limit_bytes;
        return d;
      },
      R"(pool_stats()
--

Host memory kept for reuse, and the most that is kept, a quarter of what the process may use: {held_bytes, limit_bytes}.
)");
  m.def("control_group_memory", &cpu::control_group_memory, py::arg("root") = "", R"(control_group_memory(root="")
--

The least limit on memory, in bytes, of this process's control group and of all above it; None: there is none. `root`
goes before the paths that are read.
)");
}

}  // namespace kfusion::testing
