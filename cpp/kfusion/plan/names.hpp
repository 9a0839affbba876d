// What reports call stages, values and kernels: the user's own names, made unique.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// The second stage of a name gets "_2" behind it, and so on: "relu", "relu_2".
void make_stage_names_unique(Graph& g);

/// "layernorm_2" for "layernorm.mean_2", else the stage's own name.
std::string composite_of(const std::string& stage);

/// By node: an input's name; "result", "result[1]" or a result's key, also for what a result is a view of; "relu" for
/// what a stage gives, "softmax.exp" for what it passes on inside. The graph's stages must have unique names.
std::vector<std::string> value_names(const Graph& g);

/// What PlanOptions call a value, in whatever way its graph is changed before it is planned: its stage, of which there
/// may be others (both factors' gradients), its op, type and shape. The graph's stages must have unique names.
std::string name_in_variants(const Graph& g, NodeId n);

/// The stages whose nodes a group computes, in order, each once.
std::vector<StageId> stages_of(const Graph& g, const Group& group);

/// Names kernels by their stages.
class Labels {
 public:
  explicit Labels(const Graph& g);

  /// "relu+mean+var+centre+scale". The parts of one composite ("layernorm.mean", ...) stand as "layernorm" where all of
  /// them are here; of many names the middle ones are left out.
  std::string of(const std::vector<StageId>& stages) const;

  /// The stages of each composite that has several.
  std::map<std::string, std::vector<StageId>> composites() const;

 private:
  std::vector<std::string> words(const std::vector<StageId>& stages) const;

  const Graph& g_;
  std::vector<std::string> composites_;  ///< by stage: "layernorm_2" for "layernorm.mean_2"
  std::vector<int> parts_;               ///< by stage: how many its composite has
};

}  // namespace kfusion
