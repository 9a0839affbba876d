// What array libraries compute for plans: products and convolutions by functions of their own.
#pragma once
#include "python/arrays/array.hpp"

namespace kfusion::arrays {

/// Each framework's function_for().
LibraryFunction numpy_function_for(const Node& n, Place place);
LibraryFunction torch_function_for(const Node& n, Place place);
LibraryFunction cupy_function_for(const Node& n, Place place);

/// torch's array over memory of others, whose strides are not negative; null where this torch has no quick way to make
/// one (torch.cpp).
py::object torch_tensor_over(const View& v);

/// What lets the functions of an array library compute among the kernels of a plan.
struct Bridge {
  py::object (*view)(const View& v);  ///< its array over memory of others
  /// A copy of x that lies in memory as `layout`, which is dense.
  py::object (*laid_out)(const View& layout, const py::object& x);
  py::object (*copy_of)(const View& x, const py::object& from);  ///< at an address that kernels like
  void (*write)(const py::object& x, const View& to);            ///< to = x
  /// Contexts in which its work goes to `stream`, which is not where it goes now.
  py::object (*on_stream)(Stream stream, int device);
};

/// nullptr where a library's functions cannot be called on values of others at that place.
const Bridge* bridge_of(ArrayLibrary library, Place place);

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
