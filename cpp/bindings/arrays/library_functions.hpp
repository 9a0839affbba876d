// What array libraries compute for plans: products, convolutions and gathers by functions of their own.
#pragma once
#include "bindings/arrays/array.hpp"

namespace kfusion::arrays {

/// As Framework::function_for.
LibraryFunction numpy_function_for(const Node& n, Place place);
LibraryFunction torch_function_for(const Node& n, Place place);
LibraryFunction cupy_function_for(const Node& n, Place place);

/// `with context:`
class With {
 public:
  explicit With(py::object context) : context_(std::move(context)) { context_.attr("__enter__")(); }
  ~With() {
    try {
      context_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("kfusion: at the end of a with block");
    }
  }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  py::object context_;
};

}  // namespace kfusion::arrays
