// Running without Python's global interpreter lock.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>
#include <thread>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace kfusion {

/// Releases the GIL for a scope. While the interpreter shuts down, CPython before 3.14 ends a thread that asks for the
/// GIL by unwinding it, which through a destructor means std::terminate (pybind11's own class aborts the process so);
/// such a thread sleeps here until the process is gone, as it does from 3.14 on.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
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
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace kfusion
