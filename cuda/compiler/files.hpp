// Files of bytes, through C: iostreams of a libstdc++ that is linked in statically beside another one's do not work
// reliably.
#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <system_error>

namespace kfusion::compiler {

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

inline OpenFile open_file(const std::filesystem::path& file, const char* mode) {
  return OpenFile(std::fopen(file.string().c_str(), mode));
}

/// The bytes of a file of up to `limit` bytes; empty where there is no such file.
inline std::string bytes_of(const std::filesystem::path& file,
                            std::uint64_t limit = std::numeric_limits<std::int64_t>::max()) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error || size > limit) return {};
  std::string text(size, '\0');
  const OpenFile in = open_file(file, "rb");
  return in && std::fread(text.data(), 1, size, in.get()) == size ? text : "";
}

}  // namespace kfusion::compiler
