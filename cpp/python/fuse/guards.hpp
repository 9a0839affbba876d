// What a fused function depends on beside its arguments: functions of the user's, the values of names, and what torch's
// modules consist of.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "python/fuse/weak.hpp"

namespace kfusion::fuse {

/// What decides what is traced: a function by its code and what it names, a module, a class or another object by
/// attributes, or what a function of a library gives.
struct Guard {
  enum class Kind { kFunction, kModule, kObject, kWhole, kThreads, kAsked };

  py::object owner;  ///< a weak reference
  py::tuple names;   ///< of a function's globals, or of attributes; what a function that is asked is called with
  py::tuple cells;   ///< positions in a function's closure
  bool whole;        ///< all attributes count but those of these names; of a function its attributes, too
  Kind kind;

  bool operator==(const Guard& o) const;
};

/// The values that guards had when something was traced: the code and the defaults of functions, what names were bound
/// to, types and attributes of objects. Its number stands for it in signatures.
class Environment {
 public:
  Environment(std::vector<Guard> guards, std::uint64_t number);
  /// The present values of a list of `kfusion._environment.guards.Guard`.
  explicit Environment(const py::handle& list);

  std::uint64_t number() const { return number_; }
  bool guards(const std::vector<Guard>& guards) const { return guards == guards_; }
  /// Whether these are the values now.
  bool holds() const;
  /// Whether it cannot hold any more.
  bool is_dead() const;

  template <class Visit>
  int traverse(const Visit& visit) const {
    for (const Remembered& value : values_)
      if (const int stopped = value.held() ? visit(value.held()) : 0) return stopped;
    return 0;
  }

 private:
  std::vector<Guard> guards_;
  std::vector<Remembered> values_;
  std::vector<bool> counting_;  ///< for each attribute of objects: whether its value is among these
  std::uint64_t number_;
};

using Environments = std::vector<std::shared_ptr<const Environment>>;

#ifdef Py_GIL_DISABLED
using Mutex = std::mutex;
#else
/// Whoever is here holds the GIL.
struct Mutex {
  void lock() {}
  void unlock() {}
  bool try_lock() { return true; }
};
#endif

/// The environments that a function was traced in and that may hold again. Thread-safe.
class Guards {
 public:
  static constexpr std::uint64_t kUnknown = 0;

  /// The number of the environment that holds now; kUnknown where the function was not traced in it.
  std::uint64_t number();

  /// Makes the present values of a list of `kfusion._environment.guards.Guard` the current environment. Returns whether
  /// it is another.
  bool update(const py::handle& list);

  /// The environment of that number if it is the current one and still holds, else nullptr.
  std::shared_ptr<const Environment> held(std::uint64_t number);

  void clear();

  template <class Visit>
  int traverse(const Visit& visit) const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return 0;  // a thread that a collection has stopped is changing the list: next time
    for (const auto& e : known_)
      if (const int stopped = e->traverse(visit)) return stopped;
    return 0;
  }

 private:
  std::shared_ptr<const Environment> at(std::size_t place) const;  ///< nullptr behind the last
  void put_first(const std::shared_ptr<const Environment>&);
  std::uint64_t next_number();

  mutable Mutex mutex_;
  Environments known_;  ///< the one that held last comes first
  std::uint64_t last_number_ = kUnknown;
};

/// The environments of objects among the arguments, one for each object. Thread-safe.
class GuardsOfArguments {
 public:
  std::uint64_t number(PyObject* object);
  bool update(PyObject* object, const py::handle& list);
  std::shared_ptr<const Environment> held(PyObject* object, std::uint64_t number);
  void clear();

  template <class Visit>
  int traverse(const Visit& visit) const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return 0;
    for (const auto& [object, of] : known_)
      if (const int stopped = of->guards.traverse(visit)) return stopped;
    return 0;
  }

 private:
  struct Of {
    py::object weak;
    Guards guards;
  };
  using Known = std::unordered_map<PyObject*, std::shared_ptr<Of>>;

  std::shared_ptr<Of> find(PyObject* object) const;

  mutable Mutex mutex_;
  Known known_;
};

}  // namespace kfusion::fuse
