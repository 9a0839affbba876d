#include "kfusion/interrupt.hpp"

namespace kfusion {
namespace {

constexpr std::chrono::milliseconds kInterval{20};

thread_local InterruptCheck* current_check = nullptr;

}  // namespace

InterruptCheck::InterruptCheck(std::function<void()> check)
    : check_(std::move(check)), next_(Clock::now() + kInterval), outer_(current_check) {
  current_check = this;
}

InterruptCheck::~InterruptCheck() { current_check = outer_; }

void check_interrupt() {
  InterruptCheck* const c = current_check;
  if (!c || InterruptCheck::Clock::now() < c->next_) return;
  c->check_();
  c->next_ = InterruptCheck::Clock::now() + kInterval;
}

}  // namespace kfusion
