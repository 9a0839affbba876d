#include "runtime/lent.hpp"

#include <atomic>

namespace kfusion {
namespace {

std::atomic<bool> everywhere = false;

}  // namespace

bool lends_everywhere() noexcept { return everywhere.load(std::memory_order_relaxed); }
void set_lends_everywhere(bool on) noexcept { everywhere = on; }

}  // namespace kfusion
