#include "backends/array_library/array_library.hpp"

#include "runtime/backend.hpp"

namespace kfusion {
namespace {

class LibraryStep final : public ExecutableStep {
 public:
  explicit LibraryStep(StepRequest& request)
      : node_(request.plan().graph[request.group().nodes.at(0)]), result_(request.value(request.group().nodes[0])) {
    for (const NodeId a : node_.arguments) arguments_.push_back(request.value(a));
  }

  void run(const Frame& f) const override {
    std::vector<View> arguments;
    for (const Seen& s : arguments_) arguments.push_back(s.placed(f));
    f.library->compute(node_, arguments, result_.placed(f), f.stream);
  }

 private:
  Node node_;
  std::vector<Seen> arguments_;
  Seen result_;
};

/// Products, convolutions and gathers, one at a time.
class ByArrayLibrary final : public Backend {
 public:
  std::string_view name() const override { return "array_library"; }
  bool has(Pattern p, const Device&) const override {
    return p == Pattern::kMatmul || p == Pattern::kConv2d || p == Pattern::kGather;
  }
  std::optional<std::string> refusal(const Candidate& k, const Device&) const override {
    if (k.nodes.size() == 1) return std::nullopt;
    return "computes a " + std::string(kfusion::name(k.pattern)) + " alone";
  }
  StepPointer make_step(StepRequest& request) const override { return std::make_unique<LibraryStep>(request); }
};

}  // namespace

const Backend& array_library_backend() {
  static const ByArrayLibrary backend;
  return backend;
}

}  // namespace kfusion
