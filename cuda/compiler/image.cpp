#include "compiler/image.hpp"

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

}  // namespace

std::string image(const Program& program, Architecture architecture) {
  const CubinCache cache = CubinCache::from_environment();
  const std::string key = key_of(program, architecture);
  if (auto kept = cache.read(key)) return *std::move(kept);
  std::string made = compile(program, architecture);
  cache.write(key, made);
  return made;
}

}  // namespace kfusion::compiler
