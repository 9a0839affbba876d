// What machine code asks the operating system for. All POSIX calls of this folder's files are in platform.cpp.
#pragma once
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>

namespace kfusion::cpu {

/// The system gives no memory that may be executed (a hardened one), or no more of it.
struct NoCodePages : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Pages of machine code, given back with this. They are written first and executed after that, never both at once.
class CodePages {
 public:
  /// `write` fills them where they will stay. Throws NoCodePages, and what `write` throws.
  CodePages(std::size_t bytes, const std::function<void(std::byte*)>& write);
  ~CodePages();
  CodePages(const CodePages&) = delete;
  CodePages& operator=(const CodePages&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  ///< whole pages

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// What this processor has beyond the least of its kind, as LLVM names it: "+a,-b". Empty on x86-64, which has levels.
std::string processor_features();

}  // namespace kfusion::cpu
