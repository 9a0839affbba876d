// Quotients of counts, rounded up.
#pragma once
#include <cstdint>

namespace kfusion {

constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return divide_up(n, to) * to; }

/// Size of the largest part when n > 0 things are cut into as few, about equal parts of at most `most` as possible.
constexpr std::int64_t even_part(std::int64_t n, std::int64_t most) { return divide_up(n, divide_up(n, most)); }

}  // namespace kfusion
