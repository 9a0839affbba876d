// Quotients of counts, rounded up.
#pragma once
#include <cstdint>

namespace kfusion {

constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace kfusion
