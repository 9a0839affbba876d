// The compiler of GPUs' kernels, and the cache of compiled ones.
#include <filesystem>
#include <vector>

#include "bindings/bindings.hpp"
#include "cache/kernel_cache.hpp"
#include "codegen/generate.hpp"
#include "compiler/nvrtc_library.hpp"
#include "compiler/prebuilt.hpp"
#include "python/stl.hpp"

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

std::string prebuilt_key(const std::string& source, const std::string& entry) {
  return compiler::prebuilt_key({source, entry, codegen::embedded_headers()});
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
  m.def("prebuilt_key", &prebuilt_key, py::arg("source"), py::arg("entry"), R"(prebuilt_key(source, entry)
--

What the kernel of a CUDA C++ text is known by among those that were compiled when kfusion was built.
)");
  m.def("nvrtc_library", [] { return compiler::nvrtc_library().string(); }, R"(nvrtc_library()
--

The file of the NVRTC that compiles kernels.

Raises:
    kfusion.DeviceError: none was found; the message says how to get it.
)");
}

}  // namespace kfusion
