// What a fused function depends on beside its arguments: the values of names.
#pragma once
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <vector>

namespace kfusion::fuse {

namespace py = pybind11;

/// The objects that names are bound to; nullptr where they are bound to nothing.
using Values = std::pmr::vector<py::object>;

/// A name whose value decides what is traced.
struct Guard {
  py::object scope;  ///< the dict of a module's globals, or a cell
  py::object name;   ///< None for a cell

  bool operator==(const Guard& o) const { return scope.is(o.scope) && name.equal(o.name); }
  py::object value() const;
};

/// Guards that a function had at some time, numbered: equal values of other names are another signature.
struct GuardList {
  std::vector<Guard> guards;
  std::uint64_t number = 0;

  Values values(std::pmr::memory_resource* memory) const;
  /// Whether the names are bound to these objects now.
  bool hold(const Values& values) const;
};

/// The guards of one function: those of its last trace, and all before. Thread-safe.
class Guards {
 public:
  /// Lives as long as the function, or until release().
  const GuardList& current() const { return *current_.load(std::memory_order_acquire); }

  /// Makes a list of cells and (dict of globals, name) pairs the current one. Returns whether it is another.
  bool update(const py::handle& list);

  template <class Visit>
  int traverse(const Visit& visit) const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return 0;  // a thread that a collection has stopped is changing the list: next time
    for (const auto& list : known_)
      for (const Guard& g : list->guards)
        for (PyObject* object : {g.scope.ptr(), g.name.ptr()})
          if (const int stopped = visit(object)) return stopped;
    return 0;
  }

  /// Forgets all lists, when nobody calls the function any more.
  void release();

 private:
  GuardList none_;
  std::atomic<const GuardList*> current_ = &none_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<const GuardList>> known_;
};

}  // namespace kfusion::fuse
