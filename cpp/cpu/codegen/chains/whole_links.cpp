#include "cpu/codegen/chains/whole_links.hpp"

#include <algorithm>
#include <map>

#include "cpu/codegen/math/ops.hpp"

namespace kfusion::cpu::ir {
namespace {

class WholeLinksMaker {
 public:
  explicit WholeLinksMaker(const Kernel& k) : kernel_(k), last_use_(k.steps.size(), -1), buffer_(k.steps.size(), -1) {
    for (int s = 0; s < std::ssize(k.steps); ++s) link_.push_back(link_of(s));
    for (const Store& t : k.stores) last_ = std::max(last_, link_of(t));
    for (int s = 0; s < std::ssize(k.steps); ++s) {
      last_ = std::max(last_, link_[at(s)]);
      for (const int a : k.step(s).arguments) note_use(a, link_[at(s)]);
    }
    for (const Store& t : k.stores) note_use(t.step, link_of(t));
    give_buffers();
  }

  WholeLinks run() {
    for (int i = 0; i <= last_; ++i)
      if (Link made = make(i); !made.stores.empty()) result_.links.push_back(std::move(made));
    return std::move(result_);
  }

 private:
  static constexpr int kEach = -1;  ///< each link takes what it needs
  const Step& step(int s) const { return kernel_.step(s); }
  int ready(int s) const { return kernel_.separate.ready[at(s)]; }

  /// Even ones are of rows, odd ones of elements, whose reductions the next two can use.
  int link_of(int s) const {
    if (is_source(step(s))) return kEach;
    if (step(s).kind == StepKind::kReduce) return 2 * ready(s) - 1;
    return 2 * ready(s) + (step(s).level == Level::kElement ? 1 : 0);
  }
  int link_of(const Store& t) const {
    if (!t.to.per_row()) return 2 * ready(t.step) + 1;
    return step(t.step).kind == StepKind::kReduce ? link_of(t.step) : 2 * ready(t.step);
  }
  bool is_left(int s, int by) const { return link_[at(s)] != kEach && link_[at(s)] < by; }
  void note_use(int s, int by) {
    if (is_left(s, by)) last_use_[at(s)] = std::max(last_use_[at(s)], by);
  }

  bool is_of_row(int s) const { return step(s).level == Level::kRow; }
  std::int64_t buffer_bytes(int s) const {
    const std::int64_t elements = kernel_.rows() * (is_of_row(s) ? 1 : kernel_.cols());
    return (elements * static_cast<std::int64_t>(item_bytes(compute_dtype(step(s).dtype))) + 127) & -64;
  }
  /// A buffer is free again behind the link that reads it last.
  void give_buffers() {
    std::multimap<std::int64_t, int> free;  // by bytes
    for (int i = 0; i <= last_; ++i) {
      for (int s = 0; s < std::ssize(buffer_); ++s) {
        if (link_[at(s)] != i || last_use_[at(s)] < 0) continue;
        const auto found = free.find(buffer_bytes(s));
        buffer_[at(s)] = found == free.end() ? static_cast<int>(result_.places.size()) : found->second;
        if (found != free.end()) {
          free.erase(found);
          continue;
        }
        result_.places.push_back(result_.bytes);
        result_.bytes += buffer_bytes(s);
      }
      for (int s = 0; s < std::ssize(buffer_); ++s)
        if (last_use_[at(s)] == i) free.emplace(buffer_bytes(s), buffer_[at(s)]);
    }
  }
  Operand buffer(int s, const Kernel& k) const {
    Operand o{step(s).node, compute_dtype(step(s).dtype), Extents(k.kept.size(), 0), Extents(k.reduced.size(), 0)};
    std::int64_t stride = 1;
    const auto lay = [&](const Extents& extents, Extents& strides, std::size_t first, std::size_t last) {
      for (std::size_t axis = last; axis-- > first; stride *= extents[axis]) strides[axis] = stride;
    };
    const bool columns = kernel_.kind == Pattern::kColumns, of_row = is_of_row(s);
    if (k.reduced.empty()) {  // a map of all elements has all axes, of which rows lie along some
      const std::size_t kept = kernel_.kept.size(), first = columns && of_row ? k.kept.size() - kept : 0;
      lay(k.kept, o.kept, first, of_row ? first + kept : k.kept.size());
      return o;
    }
    if (!of_row && !columns) lay(k.reduced, o.reduced, 0, k.reduced.size());
    lay(k.kept, o.kept, 0, k.kept.size());
    if (!of_row && columns) lay(k.reduced, o.reduced, 0, k.reduced.size());
    return o;
  }

  bool reduces(int link) const {
    for (int s = 0; s < std::ssize(link_); ++s)
      if (link_[at(s)] == link && step(s).kind == StepKind::kReduce) return true;
    return std::ranges::any_of(kernel_.stores, [&](const Store& t) { return t.parts > 0 && link_of(t) == link; });
  }

  Link make(int link) const {
    using enum Excerpt::Over;
    Excerpt excerpt(kernel_, link % 2 == 0 ? kRows : reduces(link) ? kSame : kElements);
    const auto need = [&](int s) {
      if (excerpt.has(s)) return;
      is_left(s, link) ? excerpt.find(s, buffer_[at(s)], buffer(s, excerpt.kernel())) : excerpt.compute(s);
    };
    for (int s = 0; s < std::ssize(link_); ++s) {
      if (link_[at(s)] != link) continue;
      for (const int a : step(s).arguments) need(a);
      need(s);
    }
    for (int s = 0; s < std::ssize(link_); ++s)
      if (link_[at(s)] == link && buffer_[at(s)] >= 0) excerpt.leave(s, buffer_[at(s)], buffer(s, excerpt.kernel()));
    for (int t = 0; t < std::ssize(kernel_.stores); ++t) {
      if (link_of(kernel_.stores[at(t)]) != link) continue;
      need(kernel_.stores[at(t)].step);
      excerpt.store(t);
    }
    return excerpt.finish();
  }

  const Kernel& kernel_;
  WholeLinks result_;
  std::vector<int> link_, last_use_, buffer_;  ///< by step
  int last_ = 0;
};

}  // namespace

WholeLinks whole_links_of(const Kernel& k) { return WholeLinksMaker(k).run(); }

}  // namespace kfusion::cpu::ir
