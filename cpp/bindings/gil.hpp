// Running without Python's global interpreter lock.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>
#include <thread>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

#include "kfusion/interrupt.hpp"

namespace kfusion {

/// Releases the GIL for a scope. While the interpreter shuts down, CPython before 3.14 ends a thread that asks for the
/// GIL by unwinding it, which through a destructor means std::terminate (pybind11's own class aborts the process so);
/// such a thread sleeps here until the process is gone, as it does from 3.14 on.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { acquire(); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

  /// Lets Python's signal handlers run; throws what they raise (KeyboardInterrupt).
  void check_signals() {
    acquire();
    const bool raised = PyErr_CheckSignals() != 0;
    std::optional<pybind11::error_already_set> error;
    if (raised) error.emplace();
    state_ = PyEval_SaveThread();
    if (error) throw std::move(*error);
  }

 private:
  void acquire() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }

  PyThreadState* state_;
};

/// The same for work that calls check_interrupt(): Ctrl-C ends it.
class Interruptible {
 public:
  Interruptible() : check_([this] { unlocked_.check_signals(); }) {}

 private:
  ReleaseGil unlocked_;
  InterruptCheck check_;
};

}  // namespace kfusion
