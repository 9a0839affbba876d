// The one place that turns an argument into a view and makes results of the argument's kind.
//
//   Call      one call of a public function: its name, its `stream=`, the stream it runs on
//   Framework a kind of array: how one is borrowed, where its memory is ordered, how a result of the kind is made
//   Array     a borrowed argument;  Result: a fresh array to write into
//
// Nothing is copied and no framework is imported that the caller has not imported.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kfusion/error.hpp"
#include "kfusion/graph/graph.hpp"
#include "kfusion/view.hpp"
#include "runtime/memory.hpp"

namespace kfusion::arrays {

namespace py = pybind11;
class Framework;

/// The library that an array belongs to. Libraries of which nothing is known but DLPack or the CUDA array interface are
/// kOther.
enum class ArrayLibrary : std::uint8_t { kNumpy, kTorch, kCupy, kJax, kOwn, kOther };

/// What a node computes of arrays of the library's: written to `out`, where that is an array, else a new array. Called
/// with the GIL.
using LibraryFunction = py::object (*)(const Node& n, const py::object& x, const py::object& y, const py::object& out);

/// The dtypes that a function takes: kAny are also numbers of NumPy and torch that graphs have no dtype for, for the
/// library's own functions.
enum class Takes { kFloats, kAll, kAny };

/// An array that an autograd of its library watches, which a plain call does not tell of what it computes.
struct RequiresGrad : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The name in messages, what the function takes, and the stream that a call's device work goes to.
class Call {
 public:
  /// `stream`: None, an integer handle, or an object with __cuda_stream__, .cuda_stream (torch) or .ptr (CuPy).
  Call(const char* function, py::handle stream, Takes takes = Takes::kFloats);

  /// "kfusion.<function>: <argument> <rest>".
  std::string says(const std::string& rest) const;

  /// The stream for a CUDA array of `framework`: the caller's, else the framework's current one on that device.
  Stream stream(const Framework& framework, int device);

  bool takes(DType t) const { return takes_ != Takes::kFloats || is_float(t); }
  bool takes_any() const { return takes_ == Takes::kAny; }
  /// "float16, bfloat16, float32 or float64", say.
  std::string dtypes_taken() const;

  bool has_stream_argument() const { return requested_.has_value(); }

 private:
  const char* function_;
  Takes takes_;
  std::optional<Stream> requested_, resolved_;
  int device_of_requested_ = -1;  ///< where that is known
};

struct Array {
  Array() {}  // not the implicit one: a vector's new element would be cleared first, a kilobyte

  View view;
  const Framework* framework = nullptr;
  py::handle object;
  std::shared_ptr<void> keep;  ///< what must live until the call is over, beside the object itself
  std::uint16_t stored =
      0;  ///< DLPack's type of numbers that the view shows in another dtype of their size; 0: it does not
  bool is_copy = false;  ///< the view is of other memory than the object's
};

struct Result {
  View view;
  py::object object;
  std::shared_ptr<void> keep = nullptr;  ///< as for Array, where the caller gave it
};

class Framework {
 public:
  virtual ~Framework() = default;
  virtual std::string name() const = 0;  ///< for messages
  virtual ArrayLibrary library() const { return ArrayLibrary::kOther; }

  /// Fills `a.view` (and `a.keep`) from `a.object`. Throws with `argument` named.
  virtual void borrow(Call& call, const char* argument, Array& a) const = 0;

  /// The stream that orders this framework's memory on `device`, and its current work.
  virtual Stream current_stream(int device) const;

  /// A fresh array of `like`'s kind and device with the dtype, extents and strides of `layout`, which is dense.
  virtual Result empty(const Call& call, const View& layout, const Array& like) const;

  /// The object for the caller, once the work that fills it is enqueued (CUDA) or done (CPU).
  virtual py::object finish(Result& r) const { return std::move(r.object); }

  virtual bool immutable() const { return false; }

  /// What decides beside their arguments what the library's functions give now; part of every call's signature.
  virtual std::uint64_t mode() const { return 0; }

  /// Whether `current_stream` is where the library's own work is ordered. Where it is not, a call waits for its kernel,
  /// so that neither the inputs are freed nor the result is read too early.
  virtual bool knows_stream() const { return false; }

  /// The library's own function for `n`, if it has one that takes memory of others at that place.
  virtual LibraryFunction function_for(const Node&, Place) const { return nullptr; }

  /// Called after `out` was written to.
  virtual void written(py::handle) const {}
};

/// Throws ValueError for a negative extent.
void require_extents(const Call& call, const char* argument, const View& v);

/// Throws ValueError where an element's address is no address. From here on nothing that is computed of an array's
/// addresses overflows.
void require_addressable(const Call& call, const char* argument, const View& v);

/// Throws ValueError for a view on a device that is not aligned to its elements: no load there could read it.
void require_aligned_on_device(const Call& call, const char* argument, const View& v);

/// "<argument> must be <dtypes taken>, got <came>", to throw.
TypeError wrong_dtype(const Call& call, const char* argument, const std::string& came);

/// n numbers as a tuple, each divided by `unit` (strides in elements).
py::tuple to_tuple(int n, const std::int64_t* values, std::int64_t unit = 1);

/// None for C order, else the strides in elements.
py::object strides_of(const Array& a);

/// The kind of `object`'s type; throws TypeError naming the conversion for what is no array. Cached by type.
const Framework& framework_of(const Call& call, const char* argument, py::handle object);

/// Throws what the framework's borrow does, and TypeError for a dtype that the call does not take.
Array borrow(Call& call, const char* argument, py::handle object);
void borrow(Call& call, const char* argument, py::handle object, Array& to);  ///< the same, in place

/// A fresh array of `like`'s kind, as its framework makes it. Where that finds no memory on a device, our own is given
/// back to the system first: no other library can ask for it.
Result fresh(const Call& call, const View& layout, const Array& like);

/// The one place that tells libraries apart, by their types where they are imported.
ArrayLibrary library_of(py::handle object);
/// "numpy", "torch", "cupy", "jax" or "kfusion"; of other types the package that defines them.
std::string library_name(py::handle object);

/// sys.modules[name], or an empty handle: never an import.
py::object loaded_module(const char* name);

const Framework& numpy_framework();
const Framework& own_framework();
const Framework& cuda_interface_framework();
/// Through the C exchange API, or through __dlpack__ where torch has none (before 2.10).
const Framework& torch_framework();
const Framework& cupy_framework();

/// torch.autocast's state and dtypes, for the CPU and for CUDA: 0 where it is off for every kind of device. torch must
/// be loaded.
std::uint64_t torch_autocast();
/// Whether a tensor requires grad, and torch's grad mode is on.
bool torch_requires_grad(pybind11::handle tensor);
bool torch_grad_is_enabled();
/// Whether results of this thread's calls are tensors that torch.empty_strided makes, as those of its own functions
/// are, instead of ones that own memory of DLPack's: torch's trees of CUDA graphs take no others. Returns what was set.
bool set_results_by_torch(bool wanted);

/// What a kind of array has beside DLPack; each may be absent.
struct DlpackExtras {
  ArrayLibrary library = ArrayLibrary::kOther;
  bool immutable = false;
  /// What the library's own __dlpack__ does not refuse although its memory holds other values than the array.
  void (*check)(const Call& call, const char* argument, py::handle object) = nullptr;
  std::uint64_t (*mode)() = nullptr;                                    ///< as in Framework
  LibraryFunction (*function_for)(const Node&, Place place) = nullptr;  ///< as in Framework
};
/// The framework of any other type with __dlpack__; `from_dlpack` makes results, None: our own array on devices,
/// NumPy's on hosts.
std::unique_ptr<Framework> dlpack_framework(std::string name, py::object from_dlpack, const DlpackExtras& extras = {});

}  // namespace kfusion::arrays
