// CUDA C++ to machine code through NVRTC. Needs neither a GPU nor a driver.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kfusion::compiler {

/// A GPU's compute capability: 9.0 is sm_90. `own`: with the instructions that no other one has, sm_90a.
struct Architecture {
  int major = 9, minor = 0;
  bool own = false;

  std::string digits() const { return std::to_string(major) + std::to_string(minor) + (own ? "a" : ""); }
};

/// Names, as #include has them, and texts: all that a program can include.
using Headers = std::span<const std::pair<std::string_view, std::string_view>>;

struct Program {
  const std::string& source;
  const std::string& name;  ///< for messages, and of the extern "C" kernel
  Headers headers;
};

/// What every program is compiled with, but for its architecture.
std::span<const char* const> options();

/// What a driver loads for `architecture`: machine code (a cubin), or PTX where NVRTC is older than the GPU.
/// Thread-safe. Throws DeviceError where there is no NVRTC for it, std::runtime_error with the log and the lines it is
/// about where the program does not compile.
std::string compile(const Program& program, Architecture architecture);

}  // namespace kfusion::compiler
