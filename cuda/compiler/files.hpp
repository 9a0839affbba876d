// Files of bytes, through C: iostreams of a libstdc++ that is linked in statically beside another one's do not work
// reliably.
#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace kfusion::compiler {

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

/// The bytes of a file; empty where there is no such file.
inline std::string bytes_of(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error) return {};
  std::string text(size, '\0');
  const OpenFile in(std::fopen(file.string().c_str(), "rb"));
  return in && std::fread(text.data(), 1, size, in.get()) == size ? text : "";
}

}  // namespace kfusion::compiler
