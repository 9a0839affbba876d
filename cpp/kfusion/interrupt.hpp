// Long work that its caller can end: planning, lowering, making kernels ready.
#pragma once
#include <chrono>
#include <functional>

namespace kfusion {

/// Long work calls this now and then: it throws what the caller's check throws. Without one it does nothing.
void check_interrupt();

/// While it lives, check_interrupt() on this thread calls `check` when 20 ms have passed since the last time.
class InterruptCheck {
 public:
  explicit InterruptCheck(std::function<void()> check);
  ~InterruptCheck();
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;

 private:
  friend void check_interrupt();
  using Clock = std::chrono::steady_clock;

  const std::function<void()> check_;
  Clock::time_point next_;
  InterruptCheck* const outer_;
};

}  // namespace kfusion
