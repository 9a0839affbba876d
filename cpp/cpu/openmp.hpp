// The threads of torch's OpenMP, for kernels among functions of torch's.
//
// Its workers wait for the next function by turning in circles, on the cores that workers of ours would need: kernels
// between two of torch's functions found one core instead of two.
#pragma once

namespace kfusion::cpu {

/// Calls f(argument) on each of `threads` threads and returns when all are done (the entry that compilers call).
using ParallelRegion = void (*)(void (*f)(void*), void* argument, unsigned threads, unsigned flags);

/// While it lives, parallel_for() of this thread runs on torch's threads, where torch is loaded and has such. A forked
/// child has none of them: OpenMP would wait for them for ever.
class OnTorchThreads {
 public:
  explicit OnTorchThreads(bool on);
  ~OnTorchThreads();
  OnTorchThreads(const OnTorchThreads&) = delete;
  OnTorchThreads& operator=(const OnTorchThreads&) = delete;

 private:
  ParallelRegion before_;
};

/// What this thread's parallel_for() runs on; nullptr: our own pool.
ParallelRegion parallel_region();

}  // namespace kfusion::cpu
