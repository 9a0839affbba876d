#include "compiler/image.hpp"

#include <atomic>
#include <cstdio>

#include "compiler/cubin_cache.hpp"
#include "compiler/digest.hpp"
#include "compiler/nvrtc_library.hpp"

namespace kfusion::compiler {
namespace {

/// Everything that the image depends on, and nothing that needs NVRTC to be loaded.
std::string key_of(const Program& program, Architecture architecture) {
  Digest digest;
  digest.add(KFUSION_VERSION).add(nvrtc_identity()).add(architecture.digits());
  for (const char* option : options()) digest.add(option);
  for (const auto& [name, text] : program.headers) digest.add(name).add(text);
  return digest.add(program.name).add(program.source).hex();
}

/// On stderr, once: nobody can be asked for the GIL here, and a warning would fail the call where warnings are errors.
void say_once(const std::string& why) {
  static std::atomic_flag said;
  if (!said.test_and_set())
    std::fprintf(
        stderr,
        "kfusion: kernels compiled for GPUs are not kept on disk: %s; set KFUSION_CACHE_DIR to a folder of your "
        "own, or KFUSION_CACHE_MB=0 to keep none\n",
        why.c_str());
}

}  // namespace

std::string image(const Program& program, Architecture architecture) {
  const CubinCache cache = CubinCache::from_environment();
  const std::string key = key_of(program, architecture);
  if (auto kept = cache.read(key)) return *std::move(kept);
  std::string made = compile(program, architecture);
  if (const std::string why = cache.write(key, made); !why.empty()) say_once(why);
  return made;
}

}  // namespace kfusion::compiler
