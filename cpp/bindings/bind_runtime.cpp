// Threads, memory, instruction sets, CUDA devices and their clocks.
#include <pybind11/functional.h>

#include "bindings/bindings.hpp"
#include "cpu/buffer_pool.hpp"
#include "cpu/copy.hpp"
#include "cpu/isa.hpp"
#include "cpu/thread_pool.hpp"
#include "host/cuda.hpp"
#include "python/arrays/array.hpp"
#include "python/gil.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

void bind_cpu(py::module_& m) {
  m.def("get_num_threads", &cpu::num_threads, R"(get_num_threads()
--

How many threads a CPU computation may use: KFUSION_NUM_THREADS, else the cores this process may run on.
)");
  m.def("set_num_threads", [](int n) { cpu::set_num_threads(n); }, py::arg("n"), R"(set_num_threads(n)
--

Sets how many threads a CPU computation may use, for the whole process. Results do not depend on it, to the bit.

Raises:
    ValueError: n < 1.
)");
  m.def("isa", [] { return std::string(cpu::name(cpu::isa())); }, R"(isa()
--

The instruction set that the CPU kernels use: "avx512", "avx2" or "baseline". KFUSION_ISA sets it at the start.
)");
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const cpu::Isa i : cpu::available_isas()) names.emplace_back(cpu::name(i));
        return names;
      },
      "available_isas()\n--\n\nThe instruction sets that this CPU has, lowest first.\n");
  m.def("results_by_torch", &arrays::set_results_by_torch, py::arg("on"), R"(results_by_torch(on)
--

Whether torch results of this thread's calls are made by torch.empty_strided, not through DLPack. Returns what was set.
)");
  m.def("flush_cpu_cache", &cpu::flush_cache, py::call_guard<ReleaseGil>(), R"(flush_cpu_cache()
--

Evicts everything from the CPU's caches, so that what follows starts cold.
)");
  m.def(
      "empty_cache", [] { return cpu::empty_cache() + cuda::empty_cache(); }, py::call_guard<ReleaseGil>(),
      R"(empty_cache()
--

Gives the memory kept for reuse, on the host and on CUDA devices, back to the system. Waits for these devices, so not
while a graph is being captured.

Host memory goes back by itself when nobody has used it for five seconds. Until then at most a quarter of what this
process may use is kept: of the machine's memory, or of the least limit of its control groups (cgroups), RLIMIT_AS and
RLIMIT_DATA when kfusion was imported. The older half of that the system may take at any time.

Returns:
    How many bytes that were.
)");
}

py::dict device_info(int device) {
  const cuda::DeviceInfo i = cuda::device_info(device);
  py::dict d;
  d["name"] = i.name;
  d["compute_capability"] = std::to_string(i.compute_major) + "." + std::to_string(i.compute_minor);
  d["multiprocessors"] = i.multiprocessors;
  d["clock_hz"] = i.clock_hz;
  d["memory_clock_hz"] = i.memory_clock_hz;
  d["memory_bus_bits"] = i.memory_bus_bits;
  d["memory_bytes"] = i.memory_bytes;
  d["l2_bytes"] = i.l2_bytes;
  d["shared_memory_per_block_bytes"] = i.shared_memory_per_block_bytes;
  d["driver_version"] = i.driver_version;
  d["runtime_version"] = i.runtime_version;
  return d;
}

/// A callback into Python, for a thread that waits without the lock.
std::function<void()> with_gil(const std::function<py::object()>& enqueue) {
  return [&enqueue] {
    const py::gil_scoped_acquire locked;
    enqueue();
  };
}

void bind_cuda(py::module_& m) {
  m.def("cuda_device_count", &cuda::device_count,
        "cuda_device_count()\n--\n\nUsable CUDA devices; 0 without a build, a driver or a device.\n");
  m.def("cuda_device_info", &device_info, py::arg("device") = 0, R"(cuda_device_info(device=0)
--

Name, compute capability, clocks (Hz), sizes (bytes) and driver of a CUDA device.

Raises:
    kfusion.DeviceError: there is no such device.
)");
  m.def(
      "cuda_synchronize", [](int device) { cuda::synchronize_device(device); }, py::arg("device") = 0,
      py::call_guard<ReleaseGil>(), R"(cuda_synchronize(device=0)
--

Waits for all work on a CUDA device.

Raises:
    kfusion.DeviceError: there is no such device, or its work failed.
)");
  m.def(
      "cuda_time",
      [](const std::function<py::object()>& enqueue, int repeats, bool cold, int device) {
        const ReleaseGil unlocked;  // while it waits: the timed work may include a callback into Python
        return cuda::time(with_gil(enqueue), repeats, cold, device);
      },
      py::arg("enqueue"), py::arg("repeats"), py::kw_only(), py::arg("cold") = true, py::arg("device") = 0,
      R"(cuda_time(enqueue, repeats, *, cold=True, device=0)
--

Times the device work that `enqueue()` puts on the legacy default stream, with CUDA events.

Args:
    enqueue: a function of no arguments; it must not wait for the device.
    repeats: how many times.
    cold: whether the L2 cache is flushed before each.
    device: index of the CUDA device.

Returns:
    Microseconds, one per repeat. The host's own time to enqueue is not in them.

Raises:
    kfusion.DeviceError: there is no such device, or the work failed.
)");
  m.def(
      "cuda_profile",
      [](const std::function<py::object()>& enqueue, int device) {
        const ReleaseGil unlocked;
        cuda::profile(with_gil(enqueue), device);
      },
      py::arg("enqueue"), py::kw_only(), py::arg("device") = 0, R"(cuda_profile(enqueue, *, device=0)
--

Calls `enqueue()` and waits for the device, between cudaProfilerStart and cudaProfilerStop: a profiler told to wait for
them (ncu --profile-from-start off) sees the kernels of this call and no others.

Args:
    enqueue: a function of no arguments.
    device: index of the CUDA device.

Raises:
    kfusion.DeviceError: there is no such device, or the work failed.
)");
}

}  // namespace

void bind_runtime(py::module_& m) {
  bind_cpu(m);
  bind_cuda(m);
}

}  // namespace kfusion
