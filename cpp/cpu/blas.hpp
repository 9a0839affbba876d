// Matrix products by a BLAS that this process has loaded already: NumPy brings OpenBLAS, torch MKL.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kfusion/dtype.hpp"

namespace kfusion::cpu {

/// A matrix of a product: strides in elements along the product's own axis (rows of the left factor, columns of the
/// right one) and along the one that is summed over.
struct Matrix {
  const std::byte* data;
  std::int64_t outer, depth;
};

class Blas {
 public:
  /// OpenBLAS; nullptr where this process has none that this knows. It may come later.
  static const Blas* loaded();

  /// The BLAS of a call, asked by its own thread: torch's MKL for torch's arrays, where it has one, so that products
  /// take no longer than torch's own; else OpenBLAS, which must be `loaded`.
  static const Blas& of_call();

  /// Whether it reads such a factor of `outer_extent` by `depth_extent` elements in place.
  bool reads(const Matrix& m, std::int64_t outer_extent, std::int64_t depth_extent) const;

  /// result = left right, of float32 or float64: rows x cols elements, rows `pitch` elements apart. Factors are such
  /// that it `reads` them; `depth` is not 0. `adds`: to what the result has.
  void multiply(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                const Matrix& right, std::byte* result, std::int64_t pitch, bool adds = false) const;

  int threads() const { return get_threads_(); }

  /// While one lives, every product is computed by the thread that asks for it. With OpenBLAS that holds for the whole
  /// process, so it is for callers with threads of their own.
  class OneThread {
   public:
    explicit OneThread(const Blas& blas);
    ~OneThread();
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

   private:
    const Blas& blas_;
  };

 private:
  using SetThreads = void (*)(int);
  using GetThreads = int (*)();

  static const Blas* find();
  static const Blas* find_in_torch();
  static bool found_in(void* library, Blas& blas);
  template <class T>
  void multiply_on_one_thread(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                              const Matrix& right, std::byte* result, std::int64_t pitch, bool adds) const;

  void *float32_ = nullptr, *float64_ = nullptr;                ///< sgemm, dgemm: of CBLAS, of MKL Fortran's
  void *float32_vector_ = nullptr, *float64_vector_ = nullptr;  ///< sgemv, dgemv
  bool wide_ = false;                                           ///< its integers have 64 bits
  SetThreads set_threads_ = nullptr;                            ///< nullptr: MKL
  GetThreads get_threads_ = nullptr;
  int (*set_own_threads_)(int) = nullptr;  ///< MKL's, of the calling thread; gives what it had
};

}  // namespace kfusion::cpu
