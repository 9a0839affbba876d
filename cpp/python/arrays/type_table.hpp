// What is known of Python types, asked once for each.
#pragma once
#include <Python.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace kfusion::arrays {

/// Values by type. Finding one that is among the first few takes no lock. Nothing is ever removed: a table lives as
/// long as the process, and so do the types in it, so that an address stays its type's.
template <class Value>
class TypeTable {
 public:
  /// nullptr: not known yet.
  const Value* find(PyTypeObject* type) {
    for (std::size_t i = 0; i < kProbes; ++i) {
      const Slot& slot = slots_[place(type, i)];
      PyTypeObject* const found = slot.type.load(std::memory_order_acquire);
      if (found == type) return &slot.value;
      if (!found) return nullptr;
    }
    const std::lock_guard lock(mutex_);
    const auto found = others_.find(type);
    return found == others_.end() ? nullptr : &found->second;
  }

  /// The value that is kept: another thread may have been first.
  const Value& insert(PyTypeObject* type, const Value& value) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kProbes; ++i) {
      Slot& slot = slots_[place(type, i)];
      PyTypeObject* const found = slot.type.load(std::memory_order_relaxed);
      if (found == type) return slot.value;
      if (found) continue;
      Py_INCREF(type);
      slot.value = value;
      slot.type.store(type, std::memory_order_release);
      return slot.value;
    }
    const auto [entry, fresh] = others_.emplace(type, value);
    if (fresh) Py_INCREF(type);
    return entry->second;
  }

 private:
  static constexpr std::size_t kSlots = 64, kProbes = 4;

  struct Slot {
    std::atomic<PyTypeObject*> type = nullptr;
    Value value{};
  };

  static std::size_t place(PyTypeObject* type, std::size_t probe) {
    constexpr int kSmallestType = 8;  // bits of an address that say little
    return ((reinterpret_cast<std::uintptr_t>(type) >> kSmallestType) + probe) % kSlots;
  }

  std::array<Slot, kSlots> slots_;
  std::mutex mutex_;
  std::unordered_map<PyTypeObject*, Value> others_;
};

}  // namespace kfusion::arrays
