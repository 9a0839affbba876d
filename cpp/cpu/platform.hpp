// What the operating system is asked for. All POSIX and Linux calls that are no CUDA matter are in platform.cpp.
#pragma once
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace kfusion::cpu {

/// Cores that this process may run on (its affinity mask), at least 1.
int usable_cores();

/// The core that this thread runs on at the moment; -1 where unknown.
int current_core() noexcept;

/// Bytes of memory that this process may use: the least of the machine's, its control groups' and its own limits
/// (RLIMIT_AS, RLIMIT_DATA). 0 where unknown.
std::size_t usable_memory();

/// Bytes of the largest cache that a core uses; 32 MB where unknown.
std::size_t last_level_cache();

/// Bytes of the first-level cache of a core for data; 32 KB where unknown.
std::size_t first_level_cache();

/// Bytes of the second-level cache of a core; 1 MB where unknown.
std::size_t second_level_cache();

/// Pages straight from the system, aligned to kHugePage and advised to be huge pages. `bytes` is a multiple of
/// kHugePage. nullptr when there are none.
inline constexpr std::size_t kHugePage = 2u << 20;
void* map_pages(std::size_t bytes) noexcept;
void unmap_pages(void* p, std::size_t bytes) noexcept;

/// Lets the system take the pages back when it runs out of memory, contents and all; until then, and from the next
/// write to a page on, they are the process's as before.
void offer_pages(void* p, std::size_t bytes) noexcept;

/// Runs `body` with all signals blocked: a thread started in it never takes a signal that the program's own threads
/// wait for (sigwait).
void without_signals(const std::function<void()>& body);

/// Called after fork() in the child.
void in_forked_child(void (*handler)());

/// A scope that fork() waits for: a child would wait for ever for what another thread has locked or is about to make
/// (a function's static variables, what a library does inside). Whoever is in it must not wait for a thread that may
/// fork, such as one that has Python's GIL.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

/// A mutex whose owners are in such a scope, for what is shared by the whole process.
class ForkSafeMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

/// Shared libraries, which stay loaded. By path, or by name where the loader looks; nullptr where there is none.
void* open_library(const char* file) noexcept;
void* loaded_library(const char* name) noexcept;  ///< only if this process has it already
std::vector<std::string> loaded_libraries();      ///< the files of all that it has; none where unknown
void* find_symbol(void* library, const char* name) noexcept;
std::string library_of(const void* symbol);  ///< the file that a symbol comes from; empty where unknown

}  // namespace kfusion::cpu
