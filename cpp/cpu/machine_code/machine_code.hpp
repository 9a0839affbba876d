// Kernels of the CPU as machine code: from a text in LLVM's language to addresses of functions.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/machine_code/platform.hpp"
#include "cpu/machine_code/target.hpp"

namespace kfusion::cpu {

namespace elf {
class Object;
}

/// The functions of one text, in memory that is given back with the last owner.
class MachineCode {
 public:
  /// Loads an object that was compiled for this machine. Throws elf::BadObject, NoCodePages.
  explicit MachineCode(std::string_view object);

  /// Throws std::out_of_range where the text defines no such function.
  void* address(std::string_view function) const;
  std::size_t bytes() const { return pages_.bytes(); }

 private:
  explicit MachineCode(const elf::Object& object);

  std::vector<std::pair<std::string, std::size_t>> functions_;
  CodePages pages_;
};

/// What `text` is compiled to for `target`, which this machine must be able to run: what somebody has of it already,
/// else what the cache on disk has, else what the compiler makes of it. Call it without Python's GIL, and not in a
/// NoFork. Throws what the compiler throws, and NoCodePages.
std::shared_ptr<const MachineCode> machine_code(const std::string& text, const ir::TargetFacts& target);

/// The code of the text that `write` gives, which is not asked where somebody has code of the same `key`. Equal keys
/// must mean equal texts; builds without NDEBUG compare them.
std::shared_ptr<const MachineCode> machine_code(const std::string& key, const std::function<std::string()>& write,
                                                const ir::TargetFacts& target);

/// Whether kernels can be compiled and run here, asked once. Where they cannot, one line on stderr says why.
bool can_compile();

/// The compiler, which Python has.
struct Compiler {
  /// Object code of a text, for any target that it knows.
  std::function<std::string(const std::string& text, const ir::TargetFacts&)> compile;
  /// Whatever changes when the compiler does; empty where there is none. It does not load the compiler.
  std::function<std::string()> identity;
};
void set_compiler(Compiler compiler);

}  // namespace kfusion::cpu
