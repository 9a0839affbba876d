// What the operating system is asked for. All POSIX and Linux calls that are no CUDA matter are in platform.cpp.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

namespace kfusion::cpu {

/// Cores that this process may run on (its affinity mask), at least 1.
int usable_cores();

/// Bytes of memory that this process may use: the machine's, or its control group's where that is less. 0 where
/// unknown.
std::size_t usable_memory();

/// Bytes of the largest cache that a core uses; 32 MB where unknown.
std::size_t last_level_cache();

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

/// Handlers round fork(): before and after it in the parent, after it in the child. Each may be nullptr.
void at_fork(void (*before)(), void (*parent)(), void (*child)());

/// Shared libraries, which stay loaded. By path, or by name where the loader looks; nullptr where there is none.
void* open_library(const char* file) noexcept;
void* loaded_library(const char* name) noexcept;  ///< only if this process has it already
void* find_symbol(void* library, const char* name) noexcept;
std::string library_of(const void* symbol);  ///< the file that a symbol comes from; empty where unknown

}  // namespace kfusion::cpu
