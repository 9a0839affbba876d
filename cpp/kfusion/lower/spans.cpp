#include "kfusion/lower/spans.hpp"

#include <algorithm>
#include <ranges>

namespace kfusion {
namespace {

/// From the last node to the first: what reads a value says along which axes it varies.
class SpanFinder {
 public:
  SpanFinder(const Candidate& k, const Extents& domain, Axes reduced)
      : k_(k), domain_(domain), all_(all_axes(domain.size())), kept_(all_ & ~reduced) {}

  std::optional<Spans> run() {
    for (const NodeId n : k_.nodes | std::views::reverse) {
      const auto own = own_span(n);
      if (!own || !set(n, *own) || !set_arguments(n)) return std::nullopt;
    }
    return std::move(spans_);
  }

 private:
  const Work& work(NodeId n) const { return k_.folded.work[at(n)]; }
  bool is_gather(NodeId n) const { return kind(k_.graph[n].op) == OpKind::kGather; }

  std::optional<Axes> own_span(NodeId n) const {
    const WorkKind kind = work(n).kind;
    if (kind == WorkKind::kContraction || kind == WorkKind::kPartial) return all_;
    if (kind == WorkKind::kReduce || is_gather(n)) return kept_;
    if (const auto read = spans_.find(n); read != spans_.end()) return read->second;
    const std::int64_t size = product(work(n).shape);  // of what is only stored: in the order of the product's elements
    for (const Axes axes : {all_, kept_})
      if (size == product(extents_of(domain_, axes))) return axes;
    return std::nullopt;
  }

  bool set(NodeId n, Axes span) { return spans_.try_emplace(n, span).first->second == span; }

  bool set_arguments(NodeId n) {
    if (work(n).kind == WorkKind::kContraction) return true;  // factors are along other axes
    const Axes over = work(n).kind == WorkKind::kReduce ? all_ : spans_.at(n);
    return std::ranges::all_of(work(n).reads, [&](const Access& a) {
      if (!k_.computes(a.base)) return true;
      const auto span = a.has_positions() ? std::optional(all_) : span_of(a, domain_, over);
      return span && set(a.base, *span);
    });
  }

  const Candidate& k_;
  const Extents& domain_;
  const Axes all_, kept_;
  Spans spans_;
};

}  // namespace

std::optional<Spans> spans_in(const Candidate& kernel, const Extents& domain, Axes reduced) {
  return SpanFinder(kernel, domain, reduced).run();
}

}  // namespace kfusion
