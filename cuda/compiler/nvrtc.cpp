#include "compiler/nvrtc.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "compiler/compile_log.hpp"
#include "compiler/nvrtc_library.hpp"
#include "cpu/platform.hpp"
#include "kfusion/error.hpp"

namespace kfusion::compiler {
namespace {

/// NVRTC's C interface, as far as it is used (nvrtc.h, which is not there at build time).
struct Api {
  using Handle = struct Opaque*;
  static constexpr int kSuccess = 0, kInvalidOption = 5, kCompilation = 6;

  int (*version)(int* major, int* minor);
  const char* (*error_string)(int status);
  int (*architecture_count)(int* count);
  int (*architectures)(int* all);
  int (*create)(Handle* program, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*destroy)(Handle* program);
  int (*compile)(Handle program, int options, const char* const* all);
  int (*log_bytes)(Handle program, std::size_t* bytes);
  int (*log)(Handle program, char* text);
  int (*cubin_bytes)(Handle program, std::size_t* bytes);
  int (*cubin)(Handle program, char* image);
  int (*ptx_bytes)(Handle program, std::size_t* bytes);
  int (*ptx)(Handle program, char* image);
};

template <class F>
void bind(void* library, F*& function, const char* name) {
  function = reinterpret_cast<F*>(cpu::find_symbol(library, name));
  if (!function) throw DeviceError(std::string("kfusion: ") + nvrtc_library().string() + " has no " + name);
}

/// NVRTC loads a second library by name, which a loader that does not look beside the first finds only where the
/// process has it already.
void open_builtins(const Api& api) {
  int major = 0, minor = 0;
  if (api.version(&major, &minor) != Api::kSuccess) return;
  const std::string name = "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  cpu::open_library((nvrtc_library().parent_path() / name).c_str());
}

Api load() {
  const std::string file = nvrtc_library().string();
  void* library = cpu::open_library(file.c_str());
  if (!library) throw DeviceError("kfusion: NVRTC, the compiler of kernels for the GPU, cannot be loaded: " + file);
  Api api;
  bind(library, api.version, "nvrtcVersion");
  bind(library, api.error_string, "nvrtcGetErrorString");
  bind(library, api.architecture_count, "nvrtcGetNumSupportedArchs");
  bind(library, api.architectures, "nvrtcGetSupportedArchs");
  bind(library, api.create, "nvrtcCreateProgram");
  bind(library, api.destroy, "nvrtcDestroyProgram");
  bind(library, api.compile, "nvrtcCompileProgram");
  bind(library, api.log_bytes, "nvrtcGetProgramLogSize");
  bind(library, api.log, "nvrtcGetProgramLog");
  bind(library, api.cubin_bytes, "nvrtcGetCUBINSize");
  bind(library, api.cubin, "nvrtcGetCUBIN");
  bind(library, api.ptx_bytes, "nvrtcGetPTXSize");
  bind(library, api.ptx, "nvrtcGetPTX");
  open_builtins(api);
  return api;
}

const Api& nvrtc() {
  static const Api api = load();
  return api;
}

void check(int status, const char* what) {
  if (status != Api::kSuccess)
    throw DeviceError(std::string("kfusion: NVRTC: ") + what + " failed: " + nvrtc().error_string(status));
}

std::string version_text() {
  int major = 0, minor = 0;
  check(nvrtc().version(&major, &minor), "asking for its version");
  return std::to_string(major) + "." + std::to_string(minor);
}

/// What to compile for: an architecture, and whether its machine code runs on the wanted one.
struct Target {
  int architecture;  ///< 90 for sm_90
  bool machine_code;
  bool own = false;

  std::string option() const {
    return std::string("--gpu-architecture=") + (machine_code ? "sm_" : "compute_") + std::to_string(architecture) +
           (own ? "a" : "");
  }
};

/// The newest architecture that NVRTC knows and `wanted` can run. Machine code runs on later ones of the same major
/// version too; anything later gets PTX, which its driver translates.
Target target_for(Architecture wanted) {
  int count = 0;
  check(nvrtc().architecture_count(&count), "asking for its architectures");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(nvrtc().architectures(known.data()), "asking for its architectures");
  int best = 0;
  for (const int a : known) {
    if (a <= 10 * wanted.major + wanted.minor) best = std::max(best, a);
  }
  if (best == 0) {
    throw DeviceError("kfusion: NVRTC " + version_text() + " knows no GPU as old as sm_" + wanted.digits() +
                      "; install an older one: pip install " + nvrtc_package(12));
  }
  if (wanted.own && best != 10 * wanted.major + wanted.minor) {
    throw DeviceError("kfusion: NVRTC " + version_text() + " does not know sm_" + wanted.digits() +
                      "; install a newer one: pip install -U " + nvrtc_package(12));
  }
  return {best, best / 10 == wanted.major, wanted.own};
}

class Compilation {
 public:
  explicit Compilation(const Program& p) : file_name_(p.name + ".cu") {
    std::vector<std::string> owned;  // NVRTC wants texts that end in NUL
    for (const auto& [name, text] : p.headers) owned.insert(owned.end(), {std::string(name), std::string(text)});
    std::vector<const char*> names, texts;
    for (std::size_t i = 0; i < owned.size(); i += 2) {
      names.push_back(owned[i].c_str());
      texts.push_back(owned[i + 1].c_str());
    }
    check(nvrtc().create(&program_, p.source.c_str(), file_name_.c_str(), static_cast<int>(names.size()), texts.data(),
                         names.data()),
          "reading a program");
  }
  ~Compilation() { nvrtc().destroy(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  /// Whether the program compiles.
  bool run(const Target& target) {
    const std::string architecture = target.option();
    std::vector<const char*> all(options().begin(), options().end());
    all.insert(all.end(), {architecture.c_str(), "--minimal"});  // a fifth faster; older versions do not know it
    int status = compile(all);
    if (status == Api::kInvalidOption) {
      all.pop_back();
      status = compile(all);
    }
    if (status != Api::kCompilation) check(status, "compiling");
    return status == Api::kSuccess;
  }
  std::string log() const { return text(nvrtc().log_bytes, nvrtc().log); }
  std::string cubin() const { return text(nvrtc().cubin_bytes, nvrtc().cubin); }
  std::string ptx() const { return text(nvrtc().ptx_bytes, nvrtc().ptx); }

 private:
  int compile(const std::vector<const char*>& all) {
    return nvrtc().compile(program_, static_cast<int>(all.size()), all.data());
  }
  std::string text(int (*size)(Api::Handle, std::size_t*), int (*get)(Api::Handle, char*)) const {
    std::size_t bytes = 0;
    check(size(program_, &bytes), "asking for a result");
    std::string result(bytes, '\0');
    check(get(program_, result.data()), "asking for a result");
    return result;
  }

  std::string file_name_;
  Api::Handle program_ = nullptr;
};

}  // namespace

std::span<const char* const> options() {
  // No contraction: fused and unfused results must agree bit for bit where their operations do.
  static constexpr const char* kOptions[] = {"--std=c++20", "--fmad=false", "--device-as-default-execution-space"};
  return kOptions;
}

std::string compile(const Program& program, Architecture architecture) {
  const cpu::NoFork whole;  // NVRTC has locks of its own
  const Target target = target_for(architecture);
  Compilation compilation(program);
  if (compilation.run(target)) return target.machine_code ? compilation.cubin() : compilation.ptx();
  throw std::runtime_error("kfusion: NVRTC " + version_text() + " did not compile the generated kernel " +
                           program.name + " for sm_" + architecture.digits() +
                           "; this is a bug of kfusion: please report it with this text\n" +
                           with_source(compilation.log(), program.name + ".cu", program.source));
}

}  // namespace kfusion::compiler
