#include "kfusion/plan/executor.hpp"

#include "kfusion/plan/plan.hpp"

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

}  // namespace

Candidate candidate_of(const Plan& plan, const Group& group) {
  return {plan.graph, plan.folded, group.pattern, group.nodes, group.stores};
}

const Executor& anyone() {
  static const Anyone executor;
  return executor;
}

std::optional<std::string> why_no_executor(const Executors& asked, const Candidate& kernel, const Device& device) {
  Asked answer = ask(asked, kernel, device);
  return answer.able.empty() ? std::optional(std::move(answer.refusals)) : std::nullopt;
}

Executors able_executors(const Executors& asked, const Candidate& kernel, const Device& device) {
  return ask(asked, kernel, device).able;
}

}  // namespace kfusion
