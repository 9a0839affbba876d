// An order in which parts can run, kept while they merge.
#pragma once
#include <cstdint>
#include <vector>

namespace kfusion {

/// A list of parts with a label each, ascending, so that two are compared without walking. Where no label is left
/// between two neighbours, all are given anew (Dietz and Sleator, Two algorithms for maintaining order in a list, 1987,
/// describe such lists).
class PartOrder {
 public:
  /// Parts 0 to n - 1, in this order.
  explicit PartOrder(int n);

  bool is_before(int a, int b) const { return label_[index(a)] < label_[index(b)]; }
  /// Moves `parts`, which keep their order among themselves, directly before `place`.
  void move_before(const std::vector<int>& parts, int place);
  /// `gone` leaves the list; `part` stands where `place`, one of the two, stood.
  void merge(int part, int gone, int place);

 private:
  static std::size_t index(int part) { return static_cast<std::size_t>(part); }
  void link(int part, int after, int before);
  void unlink(int part);
  void label_all();

  int end_;  ///< stands before the first and after the last part
  std::vector<int> previous_, next_;
  std::vector<std::int64_t> label_;  ///< of `end_`: the least
};

}  // namespace kfusion
