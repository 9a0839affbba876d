// Files of bytes, through C: iostreams of a libstdc++ that is linked in statically beside another one's break that
// one's (its facets get other numbers), so that a library which is loaded later crashes where it prints. No file of
// ours includes them; a test sees to that.
#pragma once
#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace kfusion {

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

/// The bytes of a file; empty where it cannot be read. Files of the kernel's (/proc, /sys) do not know their size.
inline std::string bytes_of(const std::string& file) {
  const OpenFile in(std::fopen(file.c_str(), "rb"));
  std::string bytes;
  std::array<char, 4096> part;
  while (in) {
    const std::size_t read = std::fread(part.data(), 1, part.size(), in.get());
    bytes.append(part.data(), read);
    if (read < part.size()) return std::ferror(in.get()) ? std::string() : bytes;
  }
  return bytes;
}

}  // namespace kfusion
