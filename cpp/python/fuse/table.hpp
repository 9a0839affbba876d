// From signatures to entries.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "python/fuse/entry.hpp"
#include "python/fuse/guards.hpp"

namespace kfusion::fuse {

/// A signature that outlives its call. It owns what it names by value; what it names by identity it does not keep alive
/// where weak references are possible, and matches nothing once that is gone.
class Key {
 public:
  Key(const Signature& s, const Environments& environments);
  bool matches(const Signature& s) const;
  bool is_dead() const;
  void append_owned(std::vector<PyObject*>& to) const;

 private:
  struct Held {
    py::object value;       ///< named by value, or
    Remembered remembered;  ///< by identity
  };
  std::vector<std::uint64_t> words_;
  std::vector<Held> objects_;
  std::vector<std::weak_ptr<const Environment>> environments_;
};

/// Keeps the entries of one function that were used last. Thread-safe.
class Table {
 public:
  /// The entry for `s`, to which the values of numbers are added that the trace looked at; nullptr: there is none.
  std::shared_ptr<const Entry> find(Signature& s);

  /// `numbers`: those that the trace looked at, by register. `environments`: those that it was made in, whose numbers
  /// are in the signature.
  void insert(Signature& s, const std::vector<int>& numbers, std::shared_ptr<const Entry> entry,
              const Environments& environments);

  void clear();
  std::size_t size() const;

  /// Calls visit(object) for what entries hold, for Python's collector of cycles; stops at what is not 0.
  template <class Visit>
  int traverse(const Visit& visit) const {
    for (const auto& [hash, slot] : slots_)
      for (PyObject* object : slot.held())
        if (const int stopped = visit(object)) return stopped;
    return 0;
  }

 private:
  struct Slot {
    Key key;
    std::shared_ptr<const Entry> entry;  ///< or, where it is null:
    std::vector<int> numbers;            ///< calls of this signature differ by these as well; of an entry: all such
    std::uint64_t last_use = 0;

    std::vector<PyObject*> held() const;
  };
  using Slots = std::unordered_multimap<std::uint64_t, Slot>;

  Slot* look_up(const Signature& s);
  Slot* search(const Signature& s);
  Slot* descend(Signature& s);
  Slot* guess(Signature& s);
  void remove_some(std::vector<Slot>& removed);

  mutable std::mutex mutex_;
  Slots slots_;
  Slot* last_ = nullptr;  ///< the slot found last: most calls are like the one before
  std::uint64_t uses_ = 0;
};

}  // namespace kfusion::fuse
