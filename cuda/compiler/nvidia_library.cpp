#include "compiler/nvidia_library.hpp"

#include <system_error>

#include "compiler/nvrtc_library.hpp"
#include "cpu/platform.hpp"

namespace kfusion::compiler {

void* nvidia_library(const std::string& stem, const std::string& wheel) {
  const auto file = [&](int major) { return "lib" + stem + ".so." + std::to_string(major); };
  for (const int major : cuda_majors())
    if (void* const loaded = cpu::loaded_library(file(major).c_str())) return loaded;
  for (const int major : cuda_majors()) {
    for (const std::filesystem::path& folder : library_folders(major, wheel)) {
      std::error_code ignored;
      if (!std::filesystem::exists(folder / file(major), ignored)) continue;
      if (void* const opened = cpu::open_library((folder / file(major)).c_str())) return opened;
    }
    if (void* const opened = cpu::open_library(file(major).c_str())) return opened;
  }
  return nullptr;
}

}  // namespace kfusion::compiler
