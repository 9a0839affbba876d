#include "kfusion/plan/prices/cheapest.hpp"

#include <algorithm>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {
namespace {

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

Price Executor::price(const Plan&, const Group&, const Price& roofline, const Device&) const { return roofline; }

void choose_executors(Plan& plan, const Executors& asked, const Device& device) {
  Executors real = asked;
  std::erase(real, &anyone());
  std::vector<Executors> able;
  for (Group& group : plan.groups) {
    const Candidate kernel = candidate_of(plan, group);
    able.push_back(able_executors(real, kernel, device));
    group.executor = able.back().empty() ? nullptr : able.back()[0];
    if (able.back().empty()) group.missing = *why_no_executor(real, kernel, device);
  }
  take_cheapest(plan, able, device);
}

}  // namespace kfusion
