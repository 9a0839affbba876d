#include "cpu/machine_code/platform.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#if defined(__APPLE__) && defined(__aarch64__)
#define KFUSION_MAP_JIT \
  1  // pages are of both kinds at once there, and each thread may do one thing with them at a time
#include <libkern/OSCacheControl.h>
#include <pthread.h>
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kfusion::cpu {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void refuse(const char* what) {
  throw NoCodePages(std::string("kfusion: the system gives no memory for machine code: ") + what + ": " +
                    std::error_code(errno, std::generic_category()).message());
}

}  // namespace

#if defined(KFUSION_MAP_JIT)

namespace {

/// This thread writes machine code, and executes none, while it lives.
struct Writing {
  Writing() { pthread_jit_write_protect_np(0); }
  ~Writing() { pthread_jit_write_protect_np(1); }
};

}  // namespace

CodePages::CodePages(std::size_t bytes, const std::function<void(std::byte*)>& write) : bytes_(whole_pages(bytes)) {
  void* const pages =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_JIT, -1, 0);
  if (pages == MAP_FAILED) refuse("mmap");
  data_ = static_cast<std::byte*>(pages);
  try {
    const Writing now;
    write(data_);
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
  sys_icache_invalidate(data_, bytes_);
}

#else

CodePages::CodePages(std::size_t bytes, const std::function<void(std::byte*)>& write) : bytes_(whole_pages(bytes)) {
  void* const pages = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) refuse("mmap");
  data_ = static_cast<std::byte*>(pages);
  try {
    write(data_);
    if (mprotect(data_, bytes_, PROT_READ | PROT_EXEC) != 0) refuse("mprotect");
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
  char* const begin = reinterpret_cast<char*>(data_);
  __builtin___clear_cache(begin, begin + bytes_);
}

#endif

std::string processor_features() {
#if defined(__aarch64__) && defined(__APPLE__)
  return "+reserve-x18";  // the system's
#elif defined(__aarch64__) && defined(__linux__)
  const auto have = getauxval(AT_HWCAP);
  std::string features = have & HWCAP_ASIMDHP ? "+fullfp16," : "";
  features += have & HWCAP_ASIMDDP ? "+dotprod," : "";
  return features.substr(0, features.find_last_of(','));
#else
  return {};
#endif
}

CodePages::~CodePages() { munmap(data_, bytes_); }

}  // namespace kfusion::cpu
