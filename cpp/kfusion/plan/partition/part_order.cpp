#include "kfusion/plan/partition/part_order.hpp"

#include <limits>

namespace kfusion {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

}  // namespace

PartOrder::PartOrder(int n) : end_(n), previous_(index(n) + 1), next_(index(n) + 1), label_(index(n) + 1) {
  for (int i = 0; i <= n; ++i) {
    previous_[index(i)] = i == 0 ? n : i - 1;
    next_[index(i)] = i == n ? 0 : i + 1;
  }
  label_all();
}

void PartOrder::label_all() {
  std::int64_t parts = 1;
  for (int i = next_[index(end_)]; i != end_; i = next_[index(i)]) ++parts;
  const std::int64_t step = kLargest / parts;
  std::int64_t label = 0;
  for (int i = next_[index(end_)]; i != end_; i = next_[index(i)]) label_[index(i)] = label += step;
}

void PartOrder::link(int part, int after, int before) {
  previous_[index(part)] = after;
  next_[index(part)] = before;
  next_[index(after)] = part;
  previous_[index(before)] = part;
}

void PartOrder::unlink(int part) {
  const int after = previous_[index(part)], before = next_[index(part)];
  next_[index(after)] = before;
  previous_[index(before)] = after;
}

void PartOrder::move_before(const std::vector<int>& parts, int place) {
  if (parts.empty()) return;
  for (const int part : parts) unlink(part);
  const std::int64_t low = label_[index(previous_[index(place)])];
  const std::int64_t step = (label_[index(place)] - low) / (static_cast<std::int64_t>(parts.size()) + 1);
  std::int64_t label = low;
  for (const int part : parts) {
    link(part, previous_[index(place)], place);
    label_[index(part)] = label += step;
  }
  if (step == 0) label_all();
}

void PartOrder::merge(int part, int gone, int place) {
  if (part != place) {
    unlink(part);
    link(part, previous_[index(place)], place);
    label_[index(part)] = label_[index(place)];
  }
  unlink(gone);
}

}  // namespace kfusion
