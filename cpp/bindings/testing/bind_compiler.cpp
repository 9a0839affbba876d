// Kernels of GPUs: the cache of compiled ones, compiling and launching one.
#include <array>
#include <vector>

#include "bindings/testing/testing.hpp"
#include "cache/kernel_cache.hpp"
#include "codegen/generate.hpp"
#include "compiler/image.hpp"
#include "compiler/prebuilt.hpp"
#include "host/compile.hpp"
#include "python/gil.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace compiler_bindings {
namespace {

using cache::KernelCache;

py::object read_kernel(const std::string& key) {
  const auto image = KernelCache::from_environment().read(key);
  return image ? py::object(py::bytes(*image)) : py::none();
}

void write_kernel(const std::string& key, const std::string& image) {
  const ReleaseGil unlocked;
  KernelCache::from_environment().write(key, image);
}

std::vector<std::string> prebuilt_keys(std::array<int, 2> capability) {
  return compiler::prebuilt_keys({capability[0], capability[1]});
}

py::bytes compile_cuda(const std::string& source, const std::string& entry, std::array<int, 2> capability, bool own) {
  std::string image;
  {
    const ReleaseGil unlocked;
    image = compiler::image({source, entry, codegen::embedded_headers()}, {capability[0], capability[1], own});
  }
  return py::bytes(image);
}

void launch_cuda(const std::string& source, const std::string& entry, const std::string& parameters,
                 std::array<unsigned, 3> grid, std::array<unsigned, 3> block, unsigned cluster,
                 std::size_t shared_bytes, bool resident, bool cooperative, int device, cuda::Stream stream) {
  codegen::Launch launch;
  std::copy(grid.begin(), grid.end(), launch.grid);
  std::copy(block.begin(), block.end(), launch.block);
  launch.cluster = cluster;
  launch.shared_bytes = shared_bytes;
  launch.resident = resident;
  launch.cooperative = cooperative;
  const ReleaseGil unlocked;
  const cuda::Function& function = cuda::compile(source, entry, device);
  cuda::launch(function, cuda::fitted(function, launch, device), parameters.data(), parameters.size(), device, stream);
}

}  // namespace
}  // namespace compiler_bindings

void bind_compiler(py::module_& m) {
  using namespace compiler_bindings;
  m.def("read_kernel", &read_kernel, py::arg("key"), R"(read_kernel(key)
--

What the cache on disk keeps under a key, None where there is nothing whole.
)");
  m.def("write_kernel", &write_kernel, py::arg("key"), py::arg("image"), R"(write_kernel(key, image)
--

Keeps bytes under a key in the cache on disk, if it can.
)");
  m.def("prebuilt_keys", &prebuilt_keys, py::arg("compute_capability") = std::array<int, 2>{9, 0},
        R"(prebuilt_keys(compute_capability=[9, 0])
--

The keys of the kernels that were compiled when kfusion was built and run on a GPU: a list of prebuilt_key's results.
)");
  m.def("compile_cuda", &compile_cuda, py::arg("source"), py::arg("entry"),
        py::arg("compute_capability") = std::array<int, 2>{9, 0}, py::arg("own") = false,
        R"(compile_cuda(source, entry, compute_capability=[9, 0], own=False)
--

CUDA C++ compiled for a GPU, which need not be there, through the cache on disk.

Args:
    source: the text; it can include the device headers of kfusion.
    entry: the name of its extern "C" kernel.
    compute_capability: of the GPU: [9, 0] is sm_90.
    own: whether the text needs instructions that only this one has: sm_90a.

Returns:
    The cubin, or PTX for a GPU that is newer than NVRTC.

Raises:
    RuntimeError: the text does not compile; the message has the log and the lines.
    kfusion.DeviceError: there is no NVRTC, or none that knows the GPU.
)");
  m.def(
      "launch_cuda", &launch_cuda, py::arg("source"), py::arg("entry"), py::arg("parameters"), py::kw_only(),
      py::arg("grid"), py::arg("block"), py::arg("cluster") = 1, py::arg("shared_bytes") = 0,
      py::arg("resident") = false, py::arg("cooperative") = false, py::arg("device") = 0, py::arg("stream") = 0,
      R"(launch_cuda(source, entry, parameters, *, grid, block, cluster=1, shared_bytes=0, resident=False, cooperative=False, device=0, stream=0)
--

Compiles a kernel of one parameter and launches it; the second time it is only launched.

Args:
    source: CUDA C++; it can include the device headers of kfusion.
    entry: the name of its extern "C" kernel.
    parameters: the bytes of its parameter.
    grid: three numbers of blocks.
    block: three numbers of threads.
    cluster: blocks along the first axis of the grid that form a cluster.
    shared_bytes: dynamic shared memory of a block.
    resident: launch no more blocks than run at once.
    cooperative: run all blocks at the same time.
    device: index of the CUDA device.
    stream: a cudaStream_t as a number.

Raises:
    RuntimeError: the text does not compile.
    kfusion.DeviceError: there is no such device or no NVRTC, or the device refuses the launch.
)");
}

}  // namespace kfusion::testing
