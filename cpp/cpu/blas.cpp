#include "cpu/blas.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "cpu/openmp.hpp"
#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;  // of CBLAS

template <class Int, class T>
using Gemm = void (*)(int order, int left, int right, Int rows, Int cols, Int depth, T alpha, const T* a, Int a_pitch,
                      const T* b, Int b_pitch, T beta, T* c, Int c_pitch);

template <class Int, class T>
using Gemv = void (*)(int order, int transposed, Int rows, Int cols, T alpha, const T* a, Int a_pitch, const T* x,
                      Int x_step, T beta, T* y, Int y_step);

/// A factor as CBLAS takes it.
struct Given {
  int order;
  std::int64_t pitch;
};

/// CBLAS counts rows along `outer` in the left factor and along `depth` in the right one.
Given given(const Matrix& m, std::int64_t outer, std::int64_t depth, bool left) {
  const bool along_depth = (m.depth == 1 || depth == 1) && (outer == 1 || m.outer >= depth);
  const std::int64_t pitch = along_depth ? (outer == 1 ? depth : m.outer) : (depth == 1 ? outer : m.depth);
  return {along_depth == left ? kPlain : kTransposed, std::max<std::int64_t>(pitch, 1)};
}

template <class Int, class T>
void multiply_as(void* function, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                 const Matrix& right, std::byte* result, std::int64_t pitch, bool adds) {
  const Given a = given(left, rows, depth, true), b = given(right, cols, depth, false);
  const auto as_int = [](std::int64_t n) { return static_cast<Int>(n); };
  reinterpret_cast<Gemm<Int, T>>(function)(kRowMajor, a.order, b.order, as_int(rows), as_int(cols), as_int(depth), T(1),
                                           reinterpret_cast<const T*>(left.data), as_int(a.pitch),
                                           reinterpret_cast<const T*>(right.data), as_int(b.pitch), T(adds),
                                           reinterpret_cast<T*>(result), as_int(pitch));
}

/// How many compute products on one thread each, and how many threads products had before.
struct Users {
  ForkSafeMutex mutex;
  int count = 0, before = 0;
  int left = 0;  ///< in a child of fork(): what `before` was to its parent, who computed
};

/// Made when this library is loaded, before anybody can fork.
Users& users = *[] {
  in_forked_child([] {
    if (users.count > 0) users.left = users.before;
    users.count = 0;
  });
  return new Users;
}();

/// A matrix times a vector, whose elements are `step` apart.
template <class Int, class T>
void multiply_vector_as(void* function, std::int64_t outer, std::int64_t depth, const Matrix& m, const std::byte* x,
                        std::int64_t x_step, std::byte* y, std::int64_t y_step, bool adds) {
  const Given a = given(m, outer, depth, true);
  const bool plain = a.order == kPlain;
  const auto as_int = [](std::int64_t n) { return static_cast<Int>(n); };
  reinterpret_cast<Gemv<Int, T>>(function)(kRowMajor, a.order, as_int(plain ? outer : depth),
                                           as_int(plain ? depth : outer), T(1), reinterpret_cast<const T*>(m.data),
                                           as_int(a.pitch), reinterpret_cast<const T*>(x), as_int(x_step), T(adds),
                                           reinterpret_cast<T*>(y), as_int(y_step));
}

/// Fortran's, of 64-bit integers. It takes columns for rows, so that left and right change places.
template <class T>
using FortranGemm = void (*)(const char* left, const char* right, const std::int64_t* rows, const std::int64_t* cols,
                             const std::int64_t* depth, const T* alpha, const T* a, const std::int64_t* a_pitch,
                             const T* b, const std::int64_t* b_pitch, const T* beta, T* c, const std::int64_t* c_pitch);

template <class T>
void multiply_by_fortran(void* function, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                         const Matrix& right, std::byte* result, std::int64_t pitch, bool adds) {
  const Given a = given(left, rows, depth, true), b = given(right, cols, depth, false);
  const auto letter = [](const Given& g) { return g.order == kPlain ? 'N' : 'T'; };
  const char of_left = letter(a), of_right = letter(b);
  const T one = 1, beta = adds ? 1 : 0;
  reinterpret_cast<FortranGemm<T>>(function)(
      &of_right, &of_left, &cols, &rows, &depth, &one, reinterpret_cast<const T*>(right.data), &b.pitch,
      reinterpret_cast<const T*>(left.data), &a.pitch, &beta, reinterpret_cast<T*>(result), &pitch);
}

}  // namespace

bool Blas::reads(const Matrix& m, std::int64_t outer_extent, std::int64_t depth_extent) const {
  const auto fits = [this](std::int64_t n) { return wide_ || n <= INT32_MAX; };
  if (!fits(m.outer) || !fits(m.depth) || !fits(outer_extent) || !fits(depth_extent)) return false;
  const bool along_depth = (m.depth == 1 || depth_extent == 1) && (outer_extent == 1 || m.outer >= depth_extent);
  const bool along_outer = (m.outer == 1 || outer_extent == 1) && (depth_extent == 1 || m.depth >= outer_extent);
  return along_depth || along_outer;
}

void Blas::multiply(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                    const Matrix& right, std::byte* result, std::int64_t pitch, bool adds) const {
  const bool is_double = dtype == DType::kFloat64;
  if (set_own_threads_)
    return is_double ? multiply_on_one_thread<double>(rows, cols, depth, left, right, result, pitch, adds)
                     : multiply_on_one_thread<float>(rows, cols, depth, left, right, result, pitch, adds);
  if (rows == 1 || cols == 1) {
    const auto by_vector =
        is_double ? (wide_ ? &multiply_vector_as<std::int64_t, double> : &multiply_vector_as<std::int32_t, double>)
                  : (wide_ ? &multiply_vector_as<std::int64_t, float> : &multiply_vector_as<std::int32_t, float>);
    const Matrix &matrix = rows == 1 ? right : left, &vector = rows == 1 ? left : right;
    const std::int64_t step = depth == 1 ? 1 : vector.depth;
    return by_vector(is_double ? float64_vector_ : float32_vector_, rows == 1 ? cols : rows, depth, matrix, vector.data,
                     step, result, rows == 1 ? 1 : pitch, adds);
  }
  void* const function = is_double ? float64_ : float32_;
  const auto as = is_double ? (wide_ ? &multiply_as<std::int64_t, double> : &multiply_as<std::int32_t, double>)
                            : (wide_ ? &multiply_as<std::int64_t, float> : &multiply_as<std::int32_t, float>);
  as(function, rows, cols, depth, left, right, result, pitch, adds);
}

template <class T>
void Blas::multiply_on_one_thread(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                                  const Matrix& right, std::byte* result, std::int64_t pitch, bool adds) const {
  const int before = set_own_threads_(1);
  multiply_by_fortran<T>(sizeof(T) == 8 ? float64_ : float32_, rows, cols, depth, left, right, result, pitch, adds);
  set_own_threads_(before);
}

/// OpenBLAS with threads of its own, in any of the names that it is built with.
bool Blas::found_in(void* library, Blas& blas) {
  for (const std::string prefix : {"scipy_", ""}) {
    for (const std::string suffix : {"64_", ""}) {
      const auto symbol = [&](const char* name) { return find_symbol(library, (prefix + name + suffix).c_str()); };
      blas.float32_ = symbol("cblas_sgemm"), blas.float64_ = symbol("cblas_dgemm");
      blas.float32_vector_ = symbol("cblas_sgemv"), blas.float64_vector_ = symbol("cblas_dgemv");
      blas.set_threads_ = reinterpret_cast<SetThreads>(symbol("openblas_set_num_threads"));
      blas.get_threads_ = reinterpret_cast<GetThreads>(symbol("openblas_get_num_threads"));
      const auto parallel = reinterpret_cast<GetThreads>(symbol("openblas_get_parallel"));
      const auto configuration = reinterpret_cast<const char* (*)()>(symbol("openblas_get_config"));
      if (!blas.float32_vector_ || !blas.float64_vector_) continue;
      if (!blas.float32_ || !blas.float64_ || !blas.set_threads_ || !blas.get_threads_ || !configuration) continue;
      constexpr int kOpenMp = 2;  // whose threads are counted for each caller
      if (parallel && parallel() == kOpenMp) continue;
      blas.wide_ = std::strstr(configuration(), "USE64BITINT") != nullptr;
      return true;
    }
  }
  return false;
}

const Blas* Blas::find() {
  for (const std::string& file : loaded_libraries()) {
    if (file.substr(file.find_last_of('/') + 1).find("openblas") == std::string::npos) continue;
    void* const library = loaded_library(file.c_str());
    Blas blas;
    if (library && found_in(library, blas)) return new Blas(blas);
  }
  return nullptr;
}

/// The MKL that torch is linked with, by the names that it shows.
const Blas* Blas::find_in_torch() {
  void* const torch = loaded_library("libtorch_cpu.so");
  if (!torch) return nullptr;
  Blas blas;
  blas.float32_ = find_symbol(torch, "sgemm_64_"), blas.float64_ = find_symbol(torch, "dgemm_64_");
  blas.set_own_threads_ = reinterpret_cast<int (*)(int)>(find_symbol(torch, "MKL_Set_Num_Threads_Local"));
  blas.get_threads_ = reinterpret_cast<GetThreads>(find_symbol(torch, "MKL_Get_Max_Threads"));
  blas.wide_ = true;
  const bool is_whole = blas.float32_ && blas.float64_ && blas.set_own_threads_ && blas.get_threads_;
  return is_whole ? new Blas(blas) : nullptr;
}

namespace {

/// What `find` gives: looked up until it is there, by no static variable (see vector_libm.cpp); kept until the process
/// ends.
const Blas* looked_up(std::atomic<const Blas*>& known, const Blas* (*find)()) {
  const Blas* there = known.load(std::memory_order_acquire);
  if (there) return there;
  const NoFork whole;
  const Blas* const mine = find();
  if (!mine || known.compare_exchange_strong(there, mine, std::memory_order_acq_rel)) return mine;
  delete mine;
  return there;
}

std::atomic<const Blas*> openblas{nullptr}, torchs{nullptr};

}  // namespace

const Blas* Blas::loaded() { return looked_up(openblas, &Blas::find); }

const Blas& Blas::of_call() {
  const Blas* const mkl = parallel_region() ? looked_up(torchs, &Blas::find_in_torch) : nullptr;
  return mkl ? *mkl : *loaded();
}

Blas::OneThread::OneThread(const Blas& blas) : blas_(blas) {
  if (!blas_.set_threads_) return;
  const std::lock_guard lock(users.mutex);
  if (users.count++ > 0) return;
  users.before = users.left > 0 ? users.left : blas_.get_threads_();
  users.left = 0;
  if (users.before != 1) blas_.set_threads_(1);
}

Blas::OneThread::~OneThread() {
  if (!blas_.set_threads_) return;
  const std::lock_guard lock(users.mutex);
  if (--users.count == 0 && users.before != 1) blas_.set_threads_(users.before);
}

}  // namespace kfusion::cpu
