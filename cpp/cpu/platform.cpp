#include "cpu/platform.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <shared_mutex>
#include <thread>

#include "cpu/control_group.hpp"
#include "kfusion/files.hpp"

#if defined(__linux__)
#include <link.h>
#include <sched.h>
#endif

namespace kfusion::cpu {

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;  // a machine beyond its 1024 cores makes the call fail, and the answer below is right there
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
#endif
  const unsigned cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

int current_core() noexcept {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

std::size_t usable_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return 0;
  std::size_t bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
  bytes = std::min(bytes, control_group_memory().value_or(bytes));
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      bytes = std::min(bytes, static_cast<std::size_t>(limit.rlim_cur));
  }
  return bytes;
}

namespace {

/// Bytes of a cache by its place in the system's list; `unknown` where the system does not say.
std::size_t cache_of_level(int level, [[maybe_unused]] int by_sysconf, std::size_t unknown) {
#if defined(__linux__)
  // sysconf gives the sum over a socket's caches on some CPUs: twelve times what a core sees.
  const std::string file = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) + "/size";
  const std::size_t kilobytes = std::strtoull(bytes_of(file.c_str()).c_str(), nullptr, 10);
  if (kilobytes > 0) return kilobytes << 10;
#endif
  const long bytes = by_sysconf < 0 ? 0 : sysconf(by_sysconf);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : unknown;
}

#if defined(_SC_LEVEL3_CACHE_SIZE)
constexpr int kFirstLevel = _SC_LEVEL1_DCACHE_SIZE, kSecondLevel = _SC_LEVEL2_CACHE_SIZE,
              kThirdLevel = _SC_LEVEL3_CACHE_SIZE;
#else
constexpr int kFirstLevel = -1, kSecondLevel = -1, kThirdLevel = -1;
#endif

// Each kernel asks. Index 0 is the first level's cache of data, 1 that of instructions.
const std::size_t first_level_bytes = cache_of_level(0, kFirstLevel, 32u << 10);
const std::size_t second_level_bytes = cache_of_level(2, kSecondLevel, 1u << 20);

}  // namespace

std::size_t first_level_cache() { return first_level_bytes; }
std::size_t second_level_cache() { return second_level_bytes; }
std::size_t last_level_cache() { return cache_of_level(3, kThirdLevel, 32u << 20); }

void* map_pages(std::size_t bytes) noexcept {
  const std::size_t mapped = bytes + kHugePage;
  if (mapped < bytes) return nullptr;
  void* const base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(base);
  const std::size_t slack = -reinterpret_cast<std::uintptr_t>(base) & (kHugePage - 1);
  if (slack > 0) munmap(begin, slack);
  munmap(begin + slack + bytes, kHugePage - slack);
#if defined(MADV_HUGEPAGE)
  madvise(begin + slack, bytes, MADV_HUGEPAGE);
#endif
  return begin + slack;
}

void unmap_pages(void* p, std::size_t bytes) noexcept { munmap(p, bytes); }

void offer_pages([[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_FREE)
  madvise(p, bytes, MADV_FREE);
#endif
}

void without_signals(const std::function<void()>& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    body();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void in_forked_child(void (*handler)()) { pthread_atfork(nullptr, nullptr, handler); }

namespace {

/// Shared by those whom a fork waits for, and owned while the process forks. Made when the library is loaded, before
/// anybody can fork; never destroyed.
std::shared_mutex& forking = *[] {
  pthread_atfork([] { forking.lock(); }, [] { forking.unlock(); },
                 [] { new (&forking) std::shared_mutex; });  // the thread that locked it has another number here
  return new std::shared_mutex;
}();

}  // namespace

NoFork::NoFork() { forking.lock_shared(); }
NoFork::~NoFork() { forking.unlock_shared(); }

void ForkSafeMutex::lock() {
  forking.lock_shared();
  mutex_.lock();
}

void ForkSafeMutex::unlock() {
  mutex_.unlock();
  forking.unlock_shared();
}

void* open_library(const char* file) noexcept { return dlopen(file, RTLD_LAZY | RTLD_LOCAL); }
void* loaded_library(const char* name) noexcept { return dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD); }

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> files;
#if defined(__linux__)
  const auto add = [](dl_phdr_info* info, std::size_t, void* all) {
    if (info->dlpi_name && *info->dlpi_name) static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &files);
#endif
  return files;
}

void* find_symbol(void* library, const char* name) noexcept { return dlsym(library, name); }

std::string library_of(const void* symbol) {
  Dl_info info;
  return dladdr(symbol, &info) != 0 && info.dli_fname ? info.dli_fname : "";
}

}  // namespace kfusion::cpu
