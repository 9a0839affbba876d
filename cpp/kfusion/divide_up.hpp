// Quotients of counts, rounded up.
#pragma once
#include <cstdint>

namespace kfusion {

constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return divide_up(n, to) * to; }

/// Of n > 0 things in as few parts of at most `most` as there can be: how many the largest has, if all are about equal.
constexpr std::int64_t even_part(std::int64_t n, std::int64_t most) { return divide_up(n, divide_up(n, most)); }

}  // namespace kfusion
