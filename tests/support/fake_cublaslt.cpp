// cuBLASLt without a GPU, for float16 on the host: what its documentation says of layouts, epilogues and sizes of
// attributes. Built into one library with cuda/host/cublaslt.cpp and fake_cuda.cpp; test_cuda_host.py calls it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "compiler/nvidia_library.hpp"
#include "host/cublaslt.hpp"

using Half = _Float16;

namespace {

constexpr int kInvalid = 7, kUnsupported = 15;
constexpr std::size_t kWorkspace = 1024, kAlgorithmBytes = 64;
constexpr unsigned char kAlgorithm = 42;

struct Operation {
  std::int32_t turns_a = 0, turns_b = 0;
  std::uint32_t epilogue = 1;
  const Half* bias = nullptr;
};

struct Layout {
  std::int64_t rows, cols, step;
  std::int32_t batches = 1;
  std::int64_t batch = 0;

  std::int64_t at(std::int64_t z, std::int64_t row, std::int64_t col) const { return z * batch + col * step + row; }
};

std::map<int, std::uint64_t> preferences;  // of the last question
bool starts = true, knows_epilogues = true, has_kernel = true;
std::string said;

/// The library loads what it needs when it needs it: not beside a capture, but in relaxed mode.
int loaded() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, nullptr) == cudaSuccess ? 0 : kInvalid;
}

template <class T>
int set(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof to) return kInvalid;
  std::memcpy(&to, value, bytes);
  return 0;
}

bool fits(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const std::int64_t rows = o.turns_a ? a.cols : a.rows, depth = o.turns_a ? a.rows : a.cols;
  const std::int64_t cols = o.turns_b ? b.rows : b.cols, other = o.turns_b ? b.cols : b.rows;
  const bool alike = a.batches == d.batches && b.batches == d.batches && c.batches == d.batches;
  return depth == other && c.rows == rows && c.cols == cols && d.rows == rows && d.cols == cols && alike;
}

float finished(float x, std::uint32_t epilogue) {
  if (epilogue & 2) return x < 0 ? 0 : x;
  return epilogue & 32 ? 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x))) : x;
}

}  // namespace

namespace kfusion::compiler {
void* nvidia_library(const std::string&, const std::string&) {
  Dl_info here;
  return dladdr(reinterpret_cast<void*>(&fits), &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
}
}  // namespace kfusion::compiler

extern "C" {

const char* cublasLtGetStatusString(int) { return "refused"; }
int cublasLtCreate(void** handle) { return *handle = &preferences, starts ? loaded() : kInvalid; }

int cublasLtMatmulDescCreate(Operation** o, int compute, int scale) {
  return *o = new Operation, compute == 68 && scale == 0 ? 0 : kInvalid;
}
int cublasLtMatmulDescDestroy(Operation* o) { return delete o, 0; }
int cublasLtMatmulDescSetAttribute(Operation* o, int attribute, const void* value, std::size_t bytes) {
  return attribute == 3   ? set(o->turns_a, value, bytes)
         : attribute == 4 ? set(o->turns_b, value, bytes)
         : attribute == 7 ? (knows_epilogues ? set(o->epilogue, value, bytes) : kUnsupported)
         : attribute == 8 ? set(o->bias, value, bytes)
                          : kInvalid;
}

int cublasLtMatrixLayoutCreate(Layout** l, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t step) {
  *l = new Layout{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), step};
  return type == 2 && step >= (*l)->rows ? 0 : kInvalid;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { return delete l, 0; }
int cublasLtMatrixLayoutSetAttribute(Layout* l, int attribute, const void* value, std::size_t bytes) {
  return attribute == 5 ? set(l->batches, value, bytes) : attribute == 6 ? set(l->batch, value, bytes) : kInvalid;
}

int cublasLtMatmulPreferenceCreate(void** p) { return preferences.clear(), *p = &preferences, 0; }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int attribute, const void* value, std::size_t bytes) {
  if (bytes != (attribute == 1 ? 8 : 4)) return kInvalid;
  std::memcpy(&preferences[attribute], value, bytes);
  return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void*, const Operation* o, const Layout* a, const Layout* b, const Layout* c,
                                   const Layout* d, void*, int wanted, unsigned char* found, int* count) {
  if (!fits(*o, *a, *b, *c, *d)) return kUnsupported;
  std::memset(found, 0, kAlgorithmBytes);
  found[0] = kAlgorithm;
  std::memcpy(found + kAlgorithmBytes, &kWorkspace, sizeof kWorkspace);
  *count = has_kernel ? wanted : 0;
  return loaded();
}

int cublasLtMatmul(void*, const Operation* o, const float* alpha, const Half* a, const Layout* la, const Half* b,
                   const Layout* lb, const float* beta, const Half* c, const Layout* lc, Half* d, const Layout* ld,
                   const unsigned char* algorithm, unsigned char* workspace, std::size_t bytes, void*) {
  if (loaded() != 0 || algorithm[0] != kAlgorithm || bytes != kWorkspace || !fits(*o, *la, *lb, *lc, *ld))
    return kInvalid;
  std::memset(workspace, 0xff, bytes);
  const std::int64_t depth = o->turns_a ? la->rows : la->cols;
  for (std::int64_t z = 0; z < ld->batches; ++z) {
    for (std::int64_t col = 0; col < ld->cols; ++col) {
      for (std::int64_t row = 0; row < ld->rows; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < depth; ++k)
          sum += static_cast<float>(a[o->turns_a ? la->at(z, k, row) : la->at(z, row, k)]) *
                 static_cast<float>(b[o->turns_b ? lb->at(z, col, k) : lb->at(z, k, col)]);
        sum *= *alpha;
        if (*beta != 0) sum += *beta * static_cast<float>(c[lc->at(z, row, col)]);
        if (o->epilogue & 4) sum += static_cast<float>(o->bias[row]);
        d[ld->at(z, row, col)] = static_cast<Half>(finished(sum, o->epilogue));
      }
    }
  }
  return 0;
}

std::uint64_t fake_preference(int attribute) { return preferences[attribute]; }
void fake_lacks(int what) { (what == 0 ? starts : what == 1 ? knows_epilogues : has_kernel) = false; }
const char* fake_said() { return said.c_str(); }

/// sizes: batches, rows, cols, depth. of_left, ...: step, batch, turned. Returns the workspace's bytes; -1 where plans
/// are to do without the library, for the reason that was said.
std::int64_t host_product(const std::int64_t* sizes, const std::int64_t* of_left, const std::int64_t* of_right,
                          const std::int64_t* of_added, const std::int64_t* of_result, const std::byte* left,
                          const std::byte* right, const std::byte* added, const std::byte* bias, std::byte* result,
                          int activation) try {
  using namespace kfusion;
  const auto matrix = [](const std::int64_t* m) { return cuda::LtMatrix{m[0], m[1], m[2] != 0}; };
  cuda::LtProduct p;
  p.dtype = DType::kFloat16, p.batches = sizes[0], p.rows = sizes[1], p.cols = sizes[2], p.depth = sizes[3];
  p.left = matrix(of_left), p.right = matrix(of_right), p.added = matrix(of_added), p.result = matrix(of_result);
  p.adds = added != nullptr, p.has_bias = bias != nullptr;
  p.activation = static_cast<cuda::LtActivation>(activation);
  const cuda::LtKernel kernel(p, 0);
  std::byte workspace[kWorkspace];
  kernel.run({left, right, added, bias, result}, workspace, 0, 0);
  return static_cast<std::int64_t>(kernel.workspace_bytes());
} catch (const kfusion::NoSuchKernel& failure) {
  said = failure.what();
  return failure.without == "cublaslt" ? -1 : -2;
}

}  // extern "C"
