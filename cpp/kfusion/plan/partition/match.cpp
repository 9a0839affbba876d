// How the domains of a producer and of its reader lie in one another.
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {
namespace {

/// The axes of a part are a sub-list of the axes `within` of the merged domain, first to first: bits move up to there.
Axes embed(Axes axes, Axes within) {
  Axes r = 0;
  for (std::size_t from = 0; within != 0; within &= within - 1, ++from) {
    if (axes & axis_bit(from)) r |= within & -within;
  }
  return r;
}

MovedAxes embed_all(MovedAxes moved, Axes within) {
  for (Axes& m : moved) m = embed(m, within);
  return moved;
}

MovedAxes then(MovedAxes first, const MovedAxes& second) {
  for (Axes& m : first) m = moved_axes(second, m);
  return first;
}

}  // namespace

Partition::Verdict Partition::match_edge(const Edge& e) const {
  const Part &a = part(part_of(e.producer)), &b = part(part_of(e.consumer));
  if (e.access->has_positions()) return {Reason::kGather};
  const Axes read = read_span(e.consumer);
  const auto seen = refine(extents_of(b.domain, read), without_ones(e.access->shape));
  const auto b_cut = seen ? cut(b.domain, read, seen->pieces_a, seen->extents) : std::nullopt;
  if (!b_cut) return {Reason::kDomainMismatch};
  const Axes read_now = moved_axes(b_cut->moved, read);
  const auto varies = span_of(*e.access, b_cut->domain, read_now);
  if (!varies) return {Reason::kDomainMismatch};
  const Axes written = span_[static_cast<std::size_t>(e.producer)];
  if (written == a.all()) return match_full(e, *b_cut, *varies);
  if (written == a.kept()) return match_rows(e, *b_cut, read_now, *varies);
  return {Reason::kMultipleConsumers};
}

/// The producer is written at every point of its domain, which so becomes part of the consumer's.
Partition::Verdict Partition::match_full(const Edge& e, const Cut& b, Axes varies) const {
  const Part& a = part(part_of(e.producer));
  const auto common = refine(extents_of(b.domain, varies), a.domain);
  if (!common) return {Reason::kDomainMismatch};
  const auto b_cut = cut(b.domain, varies, common->pieces_a, common->extents);
  const auto a_cut = cut(a.domain, a.all(), common->pieces_b, common->extents);
  if (!b_cut || !a_cut) return {Reason::kDomainMismatch};
  const Axes within = moved_axes(b_cut->moved, varies);
  if (a.reduced != 0 && within != all_axes(b_cut->domain.size())) return {Reason::kDomainMismatch};
  return {std::nullopt, {b_cut->domain, embed_all(a_cut->moved, within), then(b.moved, b_cut->moved)}};
}

/// The producer is one value per row. Its reader is either a loop over rows, or over all elements of the same rows.
Partition::Verdict Partition::match_rows(const Edge& e, const Cut& b, Axes read, Axes varies) const {
  const Part &a = part(part_of(e.producer)), &consumer = part(part_of(e.consumer));
  if (varies == all_axes(b.domain.size())) {
    if (consumer.reduced != 0) return {Reason::kDomainMismatch};  // a second set of reduced axes
    const auto common = refine(b.domain, extents_of(a.domain, a.kept()));
    if (!common) return {Reason::kDomainMismatch};
    const auto a_cut = cut(a.domain, a.kept(), common->pieces_b, common->extents);
    const auto b_cut = cut(b.domain, all_axes(b.domain.size()), common->pieces_a, common->extents);
    if (!a_cut || !b_cut) return {Reason::kDomainMismatch};
    const Axes rows = moved_axes(a_cut->moved, a.kept());
    return {std::nullopt, {a_cut->domain, a_cut->moved, embed_all(then(b.moved, b_cut->moved), rows)}};
  }
  const bool waits = a.whole && read == all_axes(b.domain.size());
  const Reason otherwise = waits ? Reason::kReductionBarrier : Reason::kDomainMismatch;
  const auto common = refine(b.domain, a.domain);
  if (!common) return {otherwise};
  const auto b_cut = cut(b.domain, all_axes(b.domain.size()), common->pieces_a, common->extents);
  const auto a_cut = cut(a.domain, a.all(), common->pieces_b, common->extents);
  if (!b_cut || !a_cut) return {otherwise};
  if (moved_axes(b_cut->moved, varies) != moved_axes(a_cut->moved, a.kept())) return {otherwise};
  return {std::nullopt, {a_cut->domain, a_cut->moved, then(b.moved, b_cut->moved)}};
}

}  // namespace kfusion
