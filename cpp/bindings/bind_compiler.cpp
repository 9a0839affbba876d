// Generated kernels: compiling, the cache of compiled ones, and launching one as tests do.
#include <array>
#include <filesystem>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "bindings/stl.hpp"
#include "cache/kernel_cache.hpp"
#include "codegen/generate.hpp"
#include "compiler/image.hpp"
#include "compiler/nvrtc_library.hpp"
#include "compiler/prebuilt.hpp"
#include "host/compile.hpp"

namespace py = pybind11;

namespace kfusion {
namespace compiler_bindings {
namespace {

using cache::KernelCache;

/// Where NVRTC may be: said now, since nothing below may ask Python while it holds a lock.
void tell_python_paths() {
  const auto sys = py::module_::import("sys");
  const auto fsencode = py::module_::import("os").attr("fsencode");
  const auto path_of = [&](py::handle text) { return fsencode(text).cast<std::string>(); };  // not always UTF-8
  std::vector<std::filesystem::path> packages;
  for (const py::handle entry : sys.attr("path")) {
    if (py::isinstance<py::str>(entry) && py::len(entry) > 0) packages.emplace_back(path_of(entry));
  }
  compiler::set_python_paths(std::move(packages), path_of(sys.attr("prefix")));
}

py::dict kernel_cache() {
  const KernelCache cache = KernelCache::from_environment();
  const KernelCache::Contents contents = cache.contents();
  py::dict d;
  d["directory"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(cache.directory().c_str()));
  d["entries"] = contents.entries;
  d["bytes"] = contents.bytes;
  d["limit_bytes"] = cache.limit_bytes();
  d["problem"] = cache.problem();
  return d;
}

py::object cache_directory() {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(KernelCache::from_environment().directory().c_str()));
}

py::dict clear_kernel_cache() {
  const KernelCache::Contents removed = KernelCache::from_environment().clear();
  py::dict d;
  d["entries"] = removed.entries;
  d["bytes"] = removed.bytes;
  return d;
}

py::object read_kernel(const std::string& key) {
  const auto image = KernelCache::from_environment().read(key);
  return image ? py::object(py::bytes(*image)) : py::none();
}

void write_kernel(const std::string& key, const std::string& image) {
  const ReleaseGil unlocked;
  KernelCache::from_environment().write(key, image);
}

std::string prebuilt_key(const std::string& source, const std::string& entry) {
  return compiler::prebuilt_key({source, entry, codegen::embedded_headers()});
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
  tell_python_paths();
  m.def("kernel_cache", &kernel_cache, R"(kernel_cache()
--

The cache of compiled kernels on disk: {directory, entries, bytes, limit_bytes, problem}; problem says why nothing can
be kept, and is empty where it can.

Raises:
    ValueError: KFUSION_CACHE_DIR or KFUSION_CACHE_MB has a value that makes no sense.
)");
  m.def("cache_directory", &cache_directory, R"(cache_directory()
--

The folder of what is kept on disk; "" where there is none.

Raises:
    ValueError: KFUSION_CACHE_DIR or KFUSION_CACHE_MB has a value that makes no sense.
)");
  m.def("clear_kernel_cache", &clear_kernel_cache, R"(clear_kernel_cache()
--

Removes all kernels from the cache on disk.

Returns:
    What they were: {entries, bytes}.
)");
  m.def("read_kernel", &read_kernel, py::arg("key"), R"(read_kernel(key)
--

What the cache on disk keeps under a key, None where there is nothing whole.
)");
  m.def("write_kernel", &write_kernel, py::arg("key"), py::arg("image"), R"(write_kernel(key, image)
--

Keeps bytes under a key in the cache on disk, if it can.
)");
  m.def("prebuilt_key", &prebuilt_key, py::arg("source"), py::arg("entry"), R"(prebuilt_key(source, entry)
--

What the kernel of a CUDA C++ text is known by among those that were compiled when kfusion was built.
)");
  m.def("prebuilt_keys", &prebuilt_keys, py::arg("compute_capability") = std::array<int, 2>{9, 0},
        R"(prebuilt_keys(compute_capability=[9, 0])
--

The keys of the kernels that were compiled when kfusion was built and run on a GPU: a list of prebuilt_key's results.
)");
  m.def("nvrtc_library", [] { return compiler::nvrtc_library().string(); }, R"(nvrtc_library()
--

The file of the NVRTC that compiles kernels.

Raises:
    kfusion.DeviceError: none was found; the message says how to get it.
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

}  // namespace kfusion
