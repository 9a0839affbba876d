#include "compiler/image.hpp"

#include "cache/digest.hpp"
#include "cache/kernel_cache.hpp"
#include "compiler/nvrtc_library.hpp"

namespace kfusion::compiler {
namespace {

/// Everything that the image depends on, and nothing that needs NVRTC to be loaded.
std::string key_of(const Program& program, Architecture architecture) {
  cache::Digest digest;
  digest.add("CUDA").add(KFUSION_VERSION).add(nvrtc_identity()).add(architecture.digits());
  for (const char* option : options()) digest.add(option);
  for (const auto& [name, text] : program.headers) digest.add(name).add(text);
  return digest.add(program.name).add(program.source).hex();
}

}  // namespace

std::string image(const Program& program, Architecture architecture) {
  const auto disk = cache::KernelCache::from_environment();
  const std::string key = key_of(program, architecture);
  if (auto kept = disk.read(key)) return *std::move(kept);
  std::string made = compile(program, architecture);
  disk.keep(key, made);
  return made;
}

}  // namespace kfusion::compiler
