#include "cpu/machine_code/machine_code.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "cache/digest.hpp"
#include "cache/kernel_cache.hpp"
#include "cpu/machine_code/elf.hpp"
#include "cpu/platform.hpp"

namespace kfusion::cpu {

MachineCode::MachineCode(std::string_view object) : MachineCode(elf::Object(object, elf::kHost)) {}

MachineCode::MachineCode(const elf::Object& object) : pages_(object.bytes(), [&](std::byte* to) { object.write(to); }) {
  for (const elf::Object::Function& f : object.functions()) functions_.emplace_back(f.name, f.offset);
}

void* MachineCode::address(std::string_view function) const {
  const auto found = std::ranges::find(functions_, function, [](const auto& f) -> std::string_view { return f.first; });
  if (found == functions_.end())
    throw std::out_of_range("no function " + std::string(function) + " in a kernel's code");
  return const_cast<std::byte*>(pages_.data() + found->second);
}

namespace {

using Code = std::shared_ptr<const MachineCode>;

// Never destroyed: kernels may outlive everything else.
ForkSafeMutex& loaded_mutex = *new ForkSafeMutex;
std::unordered_map<std::string, std::weak_ptr<const MachineCode>>& loaded =
    *new std::unordered_map<std::string, std::weak_ptr<const MachineCode>>;
/// By digests of what texts are written from: code that is in memory, and the key of its text.
struct Known {
  std::weak_ptr<const MachineCode> code;
  std::string text_key;
};
std::unordered_map<std::string, Known>& known_forms = *new std::unordered_map<std::string, Known>;
Compiler& the_compiler = *new Compiler;
std::string& known_identity = *new std::string;

/// Asked once: it looks for files.
std::string compiler_identity() {
  {
    const std::lock_guard lock(loaded_mutex);
    if (!known_identity.empty()) return known_identity;
  }
  const std::string identity = the_compiler.identity();  // asks Python, so not under the lock
  const std::lock_guard lock(loaded_mutex);
  return known_identity = identity;
}

/// What the compiler is told beside the text and the target; another number where that changes.
constexpr const char* kOptions = "LLVM 1";

/// Digest of all that the object code depends on.
std::string key_of(const std::string& text, const ir::TargetFacts& target) {
  cache::Digest digest;
  digest.add(kOptions).add(compiler_identity()).add(target.triple).add(target.cpu).add(target.features);
  return digest.add(text).hex();
}

Code find_loaded(const std::string& key) {
  const std::lock_guard lock(loaded_mutex);
  const auto found = loaded.find(key);
  return found == loaded.end() ? nullptr : found->second.lock();
}

void forget(const std::string& key) {
  const std::lock_guard lock(loaded_mutex);
  const auto found = loaded.find(key);
  if (found != loaded.end() && found->second.expired()) loaded.erase(found);
}

/// `fresh`, or what another thread loaded under that key meanwhile.
Code keep_loaded(const std::string& key, std::unique_ptr<const MachineCode> fresh) {
  Code owned(fresh.release(), [key](const MachineCode* code) {
    delete code;
    forget(key);
  });
  const std::lock_guard lock(loaded_mutex);
  auto& place = loaded[key];
  if (Code other = place.lock()) return other;
  place = owned;
  return owned;
}

Known find_known(const std::string& digest) {
  const std::lock_guard lock(loaded_mutex);
  const auto found = known_forms.find(digest);
  return found == known_forms.end() ? Known() : found->second;
}

void note_known(const std::string& digest, const Code& code, const std::string& text_key) {
  constexpr std::size_t kFew = 1024;
  const std::lock_guard lock(loaded_mutex);
  if (known_forms.size() >= kFew && known_forms.size() >= 2 * loaded.size())
    std::erase_if(known_forms, [](const auto& known) { return known.second.code.expired(); });
  known_forms.insert_or_assign(digest, Known{code, text_key});
}

/// nullptr where the disk has nothing that loads.
std::unique_ptr<const MachineCode> from_disk(const cache::KernelCache& disk, const std::string& key) {
  const std::optional<std::string> object = disk.read(key);
  if (!object) return nullptr;
  try {
    return std::make_unique<const MachineCode>(*object);
  } catch (const elf::BadObject&) {
    return nullptr;
  }
}

}  // namespace

namespace {

Code code_of(const std::string& key, const std::string& text, const ir::TargetFacts& target) {
  if (Code found = find_loaded(key)) return found;
  const auto disk = cache::KernelCache::from_environment();
  if (auto loaded_from_disk = from_disk(disk, key)) return keep_loaded(key, std::move(loaded_from_disk));
  const std::string object = the_compiler.compile(text, target);
  auto fresh = std::make_unique<const MachineCode>(object);
  disk.keep(key, object);
  return keep_loaded(key, std::move(fresh));
}

}  // namespace

std::shared_ptr<const MachineCode> machine_code(const std::string& text, const ir::TargetFacts& target) {
  return code_of(key_of(text, target), text, target);
}

std::shared_ptr<const MachineCode> machine_code(const std::string& form, const std::function<std::string()>& write,
                                                const ir::TargetFacts& target) {
  const std::string digest = cache::Digest().add(form).hex();  // keys of long kernels are long
  const Known known = find_known(digest);
  if (Code found = known.code.lock()) {
#ifndef NDEBUG
    if (key_of(write(), target) != known.text_key) throw std::logic_error("kfusion: two texts have one key");
#endif
    return found;
  }
  const std::string text = write(), key = key_of(text, target);
  Code code = code_of(key, text, target);
  note_known(digest, code, key);
  return code;
}

namespace {

/// Why kernels can be compiled or run here not at all; empty where they can.
std::string why_not() {
  if (compiler_identity().empty()) return "llvmlite, which compiles them, is not installed (pip install llvmlite)";
  try {
    const CodePages probe(1, [](std::byte*) {});
  } catch (const NoCodePages& e) {
    return e.what();
  }
  return {};
}

enum class Answer { kUnknown, kYes, kNo };
std::atomic<Answer> can{Answer::kUnknown};

}  // namespace

bool can_compile() {
  if (const Answer known = can.load(); known != Answer::kUnknown) return known == Answer::kYes;
  const std::string why = why_not();  // asks Python, so not under a lock
  const Answer before = can.exchange(why.empty() ? Answer::kYes : Answer::kNo);
  if (!why.empty() && before == Answer::kUnknown)
    std::fprintf(stderr, "kfusion: kernels of the CPU are interpreted, which is slow: %s\n", why.c_str());
  return why.empty();
}

void set_compiler(Compiler compiler) { the_compiler = std::move(compiler); }

}  // namespace kfusion::cpu
