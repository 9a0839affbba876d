#include "compiler/nvrtc_library.hpp"

#include <optional>
#include <system_error>

#include "cache/environment.hpp"
#include "cpu/platform.hpp"
#include "kfusion/error.hpp"

#ifndef KFUSION_CUDA_MAJOR
#define KFUSION_CUDA_MAJOR 13  // without CUDA, NVRTC is used by tests alone
#endif

namespace fs = std::filesystem;

namespace kfusion::compiler {
namespace {

constexpr int kMajors[] = {KFUSION_CUDA_MAJOR, 13, 12};

// Not destroyed: threads may still compile at exit.
std::vector<fs::path>& package_paths = *new std::vector<fs::path>;
fs::path& python_prefix = *new fs::path;

/// The file that a loaded library came from.
std::optional<fs::path> file_of(void* library) {
  const void* symbol = library ? cpu::find_symbol(library, "nvrtcVersion") : nullptr;
  const fs::path file = symbol ? cpu::library_of(symbol) : "";
  return file.empty() ? std::nullopt : std::optional(file);
}

std::optional<fs::path> find(int major) {
  const std::string name = "libnvrtc.so." + std::to_string(major);
  if (const auto loaded = file_of(cpu::loaded_library(name.c_str()))) return loaded;
  for (const fs::path& folder : library_folders(major, "cuda_nvrtc")) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  return file_of(cpu::open_library(name.c_str()));
}

fs::path find_or_throw() {
  if (const fs::path named = cache::variable("KFUSION_NVRTC"); !named.empty()) {
    std::error_code ignored;
    if (fs::is_regular_file(named, ignored)) return fs::absolute(named);  // of a bare name the loader finds another
    throw DeviceError("kfusion: KFUSION_NVRTC must be the file of an NVRTC library, got " + named.string());
  }
  for (const int major : kMajors) {
    if (const auto found = find(major)) return *found;
  }
  throw DeviceError("kfusion: kernels for the GPU are compiled with NVRTC (libnvrtc.so." +
                    std::to_string(KFUSION_CUDA_MAJOR) + "), which was not found; pip install " +
                    nvrtc_package(KFUSION_CUDA_MAJOR) +
                    ", or install the CUDA Toolkit and set CUDA_HOME to it, or KFUSION_NVRTC to the file");
}

}  // namespace

std::span<const int> cuda_majors() { return kMajors; }

std::vector<fs::path> library_folders(int major, const std::string& wheel) {
  std::vector<fs::path> all;
  for (const fs::path& packages : package_paths) {
    all.push_back(packages / "nvidia" / ("cu" + std::to_string(major)) / "lib");  // wheels since CUDA 13
    all.push_back(packages / "nvidia" / wheel / "lib");
  }
  for (const fs::path& prefix : {fs::path(cache::variable("CUDA_HOME")), fs::path(cache::variable("CUDA_PATH")),
                                 python_prefix, fs::path("/usr/local/cuda")}) {
    if (prefix.empty()) continue;
    all.push_back(prefix / "lib64");
    all.push_back(prefix / "lib");
  }
  return all;
}

std::string nvrtc_package(int major) {
  return major >= 13 ? "\"nvidia-cuda-nvrtc==" + std::to_string(major) + ".*\""
                     : "nvidia-cuda-nvrtc-cu" + std::to_string(major);
}

void set_python_paths(std::vector<fs::path> packages, fs::path prefix) {
  package_paths = std::move(packages);
  python_prefix = std::move(prefix);
}

const std::vector<fs::path>& python_packages() { return package_paths; }

const fs::path& nvrtc_library() {
  const cpu::NoFork whole;
  static const fs::path& found = *new fs::path(find_or_throw());  // tried again after a failure
  return found;
}

std::string nvrtc_identity() {
  const fs::path& file = nvrtc_library();
  std::error_code size_error, time_error;
  const auto size = fs::file_size(file, size_error);
  const auto time = fs::last_write_time(file, time_error).time_since_epoch().count();
  if (size_error || time_error) {
    throw DeviceError("kfusion: NVRTC, the compiler of kernels for the GPU, cannot be read: " + file.string() + ": " +
                      (size_error ? size_error : time_error).message());
  }
  return file.filename().string() + " " + std::to_string(size) + " " + std::to_string(time);
}

}  // namespace kfusion::compiler
