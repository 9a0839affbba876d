// An array that calls do not take, but Python may know how to: it splits a torch DTensor into each rank's part.
#pragma once
#include "kfusion/error.hpp"

namespace kfusion::arrays {

struct Foreign : TypeError {
  using TypeError::TypeError;
};

}  // namespace kfusion::arrays
