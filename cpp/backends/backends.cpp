#include "backends/backends.hpp"

#include <algorithm>
#include <mutex>

#include "cpu/platform.hpp"

namespace kfusion {

#define KF_BACKEND(function) const Backend& function();
#include "backends/backends.def"

namespace {

struct Table {
  cpu::ForkSafeMutex mutex;
  Executors all = {
#define KF_BACKEND(function) &function(),
#include "backends/backends.def"
  };
};

/// Made when the library is loaded, before anybody can fork. Never destroyed: threads may still run at exit.
Table& table = *new Table;

}  // namespace

Executors available_executors() {
  const std::lock_guard lock(table.mutex);
  return table.all;
}

Executors possible_executors() {
  Executors all = available_executors();
  all.push_back(&anyone());
  return all;
}

const Executor* executor_named(std::string_view name) {
  const Executors all = available_executors();
  const auto found = std::ranges::find(all, name, &Executor::name);
  return found == all.end() ? nullptr : *found;
}

void add_backend(const Backend& backend) {
  const std::lock_guard lock(table.mutex);
  table.all.insert(table.all.begin(), &backend);
}

void remove_backend(const Backend& backend) {
  const std::lock_guard lock(table.mutex);
  std::erase(table.all, &backend);
}

}  // namespace kfusion
