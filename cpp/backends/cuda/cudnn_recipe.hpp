// From a convolution and maps of its result to what cuDNN is told of it (host/cudnn.hpp).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "host/cudnn.hpp"
#include "kfusion/plan/executor.hpp"

namespace kfusion {

/// The data of a tensor of a recipe that is an array or a number.
struct RecipeData {
  int tensor = 0;  ///< of the recipe
  DType dtype = DType::kFloat32;
  Access access;          ///< an array that is read; its shape is the tensor's where that is an image
  bool is_image = false;  ///< its channels have to lie innermost, as those of all images do here
  bool is_number = false;
  float number = 0;
};

/// A kernel as cuDNN sees it: all images, and the weight, lie with their channels innermost.
struct ConvolutionRecipe {
  cudnn::Recipe recipe;
  std::vector<RecipeData> reads;  ///< in the order of the recipe's tensors
  int result = 0;                 ///< the tensor that is stored, the last one
};

/// The recipe for a kernel of Pattern::kConv2d. Nothing where cuDNN is not asked for it; `why` is then the reason, a
/// clause.
std::optional<ConvolutionRecipe> convolution_recipe(const Candidate& kernel, std::string& why);

}  // namespace kfusion
