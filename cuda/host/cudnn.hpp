// cuDNN's graph interface: a convolution and maps of its result, which one kernel of cuDNN's computes. The library is
// loaded when it is first needed, and never linked. Knows no CUDA header: without CUDA it is in no_cuda.cpp.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "host/cuda.hpp"
#include "kfusion/graph/graph.hpp"

namespace kfusion::cudnn {

using cuda::Stream;

/// Maps, with the numbers of cudnnPointwiseMode_t. Its maximum and minimum are not among them: they drop NaN (9.19).
enum class Map : int {
  kAdd = 0,
  kMultiply = 1,
  kSquareRoot = 4,
  kDivide = 6,
  kSubtract = 9,
  kAbsolute = 10,
  kCeil = 11,
  kExp = 13,
  kFloor = 14,
  kLog = 15,
  kNegative = 16,
  kRsqrt = 17,
  kErf = 20,
  kReciprocal = 22,
  kRelu = 100,
  kTanh = 101,
  kSigmoid = 102
};

/// Values of four axes: images, channels, rows, columns.
struct Tensor {
  enum class Of : std::uint8_t { kArray, kNumber, kBetween };  ///< kNumber: one float32, given as a pointer on the host
  Of of = Of::kBetween;
  DType dtype = DType::kFloat32;
  Extents extents, strides;  ///< in elements
};

/// An operation on tensors, given by their indices.
struct Operation {
  bool is_convolution = false;  ///< of image x and weight y
  Conv2dAttributes window;
  Map map = Map::kAdd;
  int x = 0, y = -1, result = 0;  ///< y: -1 where a map has one argument
};

struct Recipe {
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;  ///< in order; the last one's result is the one that is stored

  /// All of it: what is made for one is right for all of the same text.
  std::string text() const {
    std::string t;
    const auto add = [&](std::int64_t n) { t += std::to_string(n) + ' '; };
    for (const Tensor& x : tensors) {
      add(static_cast<int>(x.of)), add(static_cast<int>(x.dtype));
      for (const Extents* all : {&x.extents, &x.strides})
        for (const std::int64_t n : *all) add(n);
    }
    for (const Operation& o : operations) {
      t += o.is_convolution ? 'c' : 'm';
      add(static_cast<int>(o.map)), add(o.x), add(o.y), add(o.result);
      for (const auto* pair : {o.window.stride, o.window.padding, o.window.dilation}) add(pair[0]), add(pair[1]);
    }
    return t;
  }
};

/// A kernel of cuDNN's for a recipe, on one device.
class Plan {
 public:
  virtual std::size_t workspace_bytes() const = 0;
  /// Enqueues it. `data`: by tensor that is an array or a number, in order; arrays begin at multiples of 16 bytes.
  virtual void run(const void* const* data, std::byte* workspace, Stream stream) const = 0;

 protected:
  ~Plan() = default;
};

/// Whether cuDNN can be loaded here.
bool is_there() noexcept;

/// Whether no kernel was found for a recipe before, on such a device.
bool is_unsupported(const Recipe& r, int compute_capability);

/// Makes the kernel (0.05 to 1 s), or finds the one that was made. Thread-safe. Throws NoSuchKernel: where the library
/// cannot be used now, plans do without it.
std::shared_ptr<const Plan> make(const Recipe& r, int device);

}  // namespace kfusion::cudnn
