#include "kfusion/plan/executor.hpp"

#include <algorithm>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {
namespace {

class Anyone final : public Executor {
 public:
  std::string_view name() const override { return ""; }
  bool has(Pattern, const Device&) const override { return true; }
};

/// Who runs a kernel.
struct Asked {
  Executors able;
  std::string refusals;  ///< of those that have its pattern
};

Asked ask(const Executors& asked, const Candidate& kernel, const Device& device) {
  Asked result;
  for (const Executor* e : asked) {
    if (!e->has(kernel.pattern, device)) continue;
    if (const auto refusal = e->refusal(kernel, device))
      result.refusals += (result.refusals.empty() ? "" : "; ") + std::string(e->name()) + " " + *refusal;
    else
      result.able.push_back(e);
  }
  if (result.refusals.empty()) result.refusals = "no executor has kernels for " + std::string(name(kernel.pattern));
  return result;
}

/// The first of those that take least: of what was measured, where all were.
const Executor* cheapest(const Executors& able, const std::vector<Price>& prices) {
  if (able.empty()) return nullptr;
  const bool measured = std::ranges::all_of(prices, &Price::measured);
  const auto least = std::ranges::min_element(prices, {}, measured ? &Price::total_us : &Price::predicted_us);
  return able[static_cast<std::size_t>(least - prices.begin())];
}

/// Prices depend on what ran before, and not on who ran it: each round prices one executor of each kernel.
void take_cheapest(Plan& plan, const std::vector<Executors>& able, const Device& device) {
  std::size_t rounds = 0;
  for (const Executors& e : able) rounds = std::max(rounds, e.size());
  if (rounds < 2) return;
  std::vector<std::vector<Price>> prices(able.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < able.size(); ++i)
      if (round < able[i].size()) plan.groups[i].executor = able[i][round];
    const PlanCost cost = count_in_place(plan, device);
    for (std::size_t i = 0; i < able.size(); ++i)
      if (round < able[i].size()) prices[i].push_back(cost.groups[i].price);
  }
  for (std::size_t i = 0; i < able.size(); ++i) plan.groups[i].executor = cheapest(able[i], prices[i]);
}

}  // namespace

Candidate candidate_of(const Plan& plan, const Group& group) {
  return {plan.graph, plan.folded, group.pattern, group.nodes, group.stores};
}

Price Executor::price(const Plan&, const Group&, const Price& roofline, const Device&) const { return roofline; }

const Executor& anyone() {
  static const Anyone executor;
  return executor;
}

std::optional<std::string> missing_executor(const Executors& asked, const Candidate& kernel, const Device& device) {
  Asked answer = ask(asked, kernel, device);
  return answer.able.empty() ? std::optional(std::move(answer.refusals)) : std::nullopt;
}

Executors able_executors(const Executors& asked, const Candidate& kernel, const Device& device) {
  return ask(asked, kernel, device).able;
}

void choose_executors(Plan& plan, const Executors& asked, const Device& device) {
  Executors real = asked;
  std::erase(real, &anyone());
  std::vector<Executors> able;
  for (Group& group : plan.groups) {
    Asked answer = ask(real, candidate_of(plan, group), device);
    group.executor = answer.able.empty() ? nullptr : answer.able[0];
    if (answer.able.empty()) group.missing = std::move(answer.refusals);
    able.push_back(std::move(answer.able));
  }
  take_cheapest(plan, able, device);
}

}  // namespace kfusion
