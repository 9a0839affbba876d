// Where NVRTC is. It is never linked: one build of kfusion imports anywhere, and finds it when a kernel is compiled.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace kfusion::compiler {

/// Folders that Python packages are installed in, and its prefix, said once when the module is imported: NVIDIA's
/// wheels put NVRTC below them.
void set_python_paths(std::vector<std::filesystem::path> packages, std::filesystem::path prefix);
const std::vector<std::filesystem::path>& python_packages();  ///< the folders

/// The file of the NVRTC that is used: of the major version that this build was made with, else of another known one.
/// It is what the process has loaded, or lies in NVIDIA's wheels, CUDA_HOME, CUDA_PATH, Python's prefix (conda) or
/// /usr/local/cuda, or is what the loader finds. KFUSION_NVRTC names a file instead. Looked for once, and not
/// loaded unless only the loader knows it: loading costs more than a cached kernel. Throws DeviceError where there is
/// none.
const std::filesystem::path& nvrtc_library();

/// Major versions of CUDA that are looked for, likeliest first.
std::span<const int> cuda_majors();

/// Folders that may hold libraries of CUDA `major`, likeliest first; `wheel`: of the package before CUDA 13.
std::vector<std::filesystem::path> library_folders(int major, const std::string& wheel);

/// What pip calls the wheels of a major version.
std::string nvrtc_package(int major);

/// Which NVRTC that is: its name, size and date, which need no loading either.
std::string nvrtc_identity();

}  // namespace kfusion::compiler
