// Running without Python's global interpreter lock.
#pragma once
#include <pybind11/pybind11.h>

namespace kfusion {

/// Releases the GIL for a scope.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { PyEval_RestoreThread(state_); }  // while the interpreter shuts down, see ended_threads.cpp
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace kfusion
