#include "cpu/codegen/chains/long_chains.hpp"

#include <algorithm>

#include "cpu/codegen/form/form.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/math/ops.hpp"

namespace kfusion::cpu::ir {
namespace {

/// Whether a row goes through all links before the next one.
bool takes_whole_rows(const Kernel& k) {
  const Form form(k, host_facts(), false);
  const bool has_short_runs = form.axes > 1 && form.extents().back() < kShortestRow;
  return !form.across && !form.in_pieces && k.parts() == 0 && !has_short_runs;
}

/// Which link computes each step.
class Cut {
 public:
  static constexpr int kEach = -1;  ///< in each that needs it

  explicit Cut(const Kernel& k) : kernel_(k) {
    std::vector<bool> is_late;  // needs a reduction
    int operations = 0;
    for (int s = 0; s < std::ssize(k.steps); ++s) {
      const Step& step = k.step(s);
      const auto late = [&](int a) { return bool(is_late[at(a)]); };
      is_late.push_back(step.kind == StepKind::kReduce || std::ranges::any_of(step.arguments, late));
      const bool is_early = !is_late.back() && !is_source(step) && (is_map() || step.level == Level::kElement);
      link_.push_back(is_early ? last_ : kEach);
      if (!is_early) continue;
      operations += operations_of(step);
      if (operations > kLinkOperations && operations > operations_of(step))
        link_.back() = ++last_, operations = operations_of(step);
    }
    if (!is_map()) ++last_;
    for (std::size_t s = 0; s < link_.size(); ++s)
      if (is_late[s]) link_[s] = last_;
  }

  bool is_map() const { return kernel_.kind == Pattern::kPointwise; }
  int last() const { return last_; }
  int link(int s) const { return link_[at(s)]; }
  bool is_left(int s, int by) const { return link(s) != kEach && link(s) < by; }

  /// Steps that a link computes or finds.
  std::vector<bool> wanted_by(int link) const {
    std::vector<bool> wanted(link_.size());
    if (link == last_)
      for (const Store& t : kernel_.stores) wanted[at(t.step)] = true;
    for (std::size_t s = wanted.size(); s-- > 0;) {
      if (link_[s] == link) wanted[s] = true;
      if (!wanted[s] || is_left(static_cast<int>(s), link)) continue;
      for (const int a : kernel_.steps[s].arguments) wanted[at(a)] = true;
    }
    return wanted;
  }
  /// What the last link computes itself.
  int operations_of_last() const {
    int n = 0;
    for (std::size_t s = 0; s < link_.size(); ++s)
      if (link_[s] == last_ || link_[s] == kEach) n += operations_of(kernel_.steps[s]);
    return n;
  }

 private:
  const Kernel& kernel_;
  std::vector<int> link_;
  int last_ = 0;
};

class ChainMaker {
 public:
  explicit ChainMaker(const Kernel& k) : kernel_(k), cut_(k), buffer_(k.steps.size(), -1) {
    chain_.is_whole = !cut_.is_map() && !takes_whole_rows(k);
    give_buffers();
  }

  Chain run() {
    for (int link = 0; link <= cut_.last(); ++link) chain_.links.push_back(make(link));
    return std::move(chain_);
  }

 private:
  const Step& step(int s) const { return kernel_.step(s); }

  /// A buffer is free again behind the link that reads it last. What the last link reads of a whole row has one of its
  /// own: other elements of values of another size would lie where it does.
  void give_buffers() {
    std::vector<int> last_use(buffer_.size(), -1);
    for (int link = 0; link <= cut_.last(); ++link) {
      wanted_.push_back(cut_.wanted_by(link));
      for (int s = 0; s < std::ssize(buffer_); ++s)
        if (wanted_.back()[at(s)] && cut_.is_left(s, link)) last_use[at(s)] = link;
    }
    std::vector<int> free;
    std::vector<std::vector<int>> freed(wanted_.size());
    for (int s = 0, link = 0; s < std::ssize(buffer_); ++s) {
      if (last_use[at(s)] < 0 || is_whole(s, last_use[at(s)])) continue;
      for (; link < cut_.link(s); ++link) free.insert(free.end(), freed[at(link)].begin(), freed[at(link)].end());
      const bool is_of_row = !cut_.is_map() && last_use[at(s)] == cut_.last();
      if (free.empty() || is_of_row) free.push_back(chain_.buffers++);
      buffer_[at(s)] = free.back();
      free.pop_back();
      freed[at(last_use[at(s)])].push_back(buffer_[at(s)]);
    }
    for (int s = 0; s < std::ssize(buffer_); ++s)
      if (last_use[at(s)] >= 0 && is_whole(s, last_use[at(s)]))
        buffer_[at(s)] = chain_.buffers + chain_.whole_buffers++;
  }
  bool is_whole(int s, int last_use) const {
    return chain_.is_whole && last_use == cut_.last() && cut_.link(s) != cut_.last();
  }

  Link make(int number) const {
    const bool is_map = cut_.is_map() || number < cut_.last();
    Excerpt excerpt(kernel_, is_map ? Excerpt::Over::kElements : Excerpt::Over::kSame);
    for (int s = 0; s < std::ssize(buffer_); ++s) {
      if (!wanted_[at(number)][at(s)]) continue;
      cut_.is_left(s, number) ? excerpt.find(s, buffer_[at(s)], buffer(s, excerpt.kernel())) : excerpt.compute(s);
    }
    for (int s = 0; s < std::ssize(buffer_); ++s)
      if (cut_.link(s) == number && buffer_[at(s)] >= 0) excerpt.leave(s, buffer_[at(s)], buffer(s, excerpt.kernel()));
    for (int t = 0; number == cut_.last() && t < std::ssize(kernel_.stores); ++t) excerpt.store(t);
    if (!is_map) excerpt.take_pairs();
    return excerpt.finish();
  }

  /// Neighbours along a row, as maps see it, or along all of a row that is reduced; or all elements in order.
  Operand buffer(int s, const Kernel& k) const {
    Operand o{step(s).node, compute_dtype(step(s).dtype), Extents(k.kept.size(), 0), Extents(k.reduced.size(), 0)};
    std::int64_t stride = 1;
    const auto lay = [&](const Extents& extents, Extents& strides) {
      for (std::size_t axis = extents.size(); axis-- > 0; stride *= extents[axis]) strides[axis] = stride;
    };
    const bool whole = buffer_[at(s)] >= chain_.buffers;
    if (whole && k.kind == Pattern::kColumns) {
      lay(k.kept, o.kept), lay(k.reduced, o.reduced);
      return o;
    }
    lay(k.reduced, o.reduced);
    if (whole) lay(k.kept, o.kept);
    if (whole || !k.reduced.empty() || k.kept.empty()) return o;
    o.kept.back() = 1;
    if (k.kept.size() > 1 && k.kept.back() < kShortestRow) o.kept[k.kept.size() - 2] = k.kept.back();
    return o;
  }

  const Kernel& kernel_;
  const Cut cut_;
  Chain chain_;
  std::vector<int> buffer_;                ///< by step
  std::vector<std::vector<bool>> wanted_;  ///< by link and step
};

}  // namespace

bool is_long_chain(const Kernel& k) { return operations_of(k) > kMostOperations; }

bool is_long_behind_reductions(const Kernel& k) {
  return is_long_chain(k) && k.kind != Pattern::kPointwise && Cut(k).operations_of_last() > kMostOperations;
}

Chain chain_of(const Kernel& k) { return ChainMaker(k).run(); }

}  // namespace kfusion::cpu::ir
