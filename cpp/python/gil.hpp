// Running without Python's global interpreter lock.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "kfusion/interrupt.hpp"

namespace kfusion {

/// Releases the GIL for a scope.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { PyEval_RestoreThread(state_); }  // while the interpreter shuts down, see ended_threads.cpp
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

  /// Lets Python's signal handlers run; throws what they raise (KeyboardInterrupt).
  void check_signals() {
    PyEval_RestoreThread(state_);
    const bool raised = PyErr_CheckSignals() != 0;
    std::optional<pybind11::error_already_set> error;
    if (raised) error.emplace();
    state_ = PyEval_SaveThread();
    if (error) throw std::move(*error);
  }

 private:
  PyThreadState* state_;
};

/// Releases the GIL for work that calls check_interrupt(): Ctrl-C ends it.
class Interruptible {
 public:
  Interruptible() : check_([this] { unlocked_.check_signals(); }) {}

 private:
  ReleaseGil unlocked_;
  InterruptCheck check_;
};

}  // namespace kfusion
