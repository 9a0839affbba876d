#include "host/cublaslt.hpp"

#include <mutex>
#include <string>

#include "compiler/nvidia_library.hpp"
#include "cpu/platform.hpp"
#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

/// The numbers of enumerators that are used, as NVIDIA's documentation of cuBLAS has them ("Using the cuBLASLt API").
namespace lt {
constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14;                         // cudaDataType_t
constexpr int kComputeFloat32 = 68;                                               // cublasComputeType_t
constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;  // cublasLtMatmulDescAttributes_t
constexpr std::uint32_t kDefault = 1, kRelu = 2, kBias = 4, kGelu = 32;           // cublasLtEpilogue_t
constexpr int kBatchCount = 5, kBatchOffset = 6;                                  // cublasLtMatrixLayoutAttribute_t
constexpr int kMaxWorkspace = 1, kReductions = 3, kAlignmentOfA = 5;  // cublasLtMatmulPreferenceAttributes_t
constexpr std::uint32_t kSumsInFloat32 = 2;                           // cublasLtReductionScheme_t

struct Algorithm {
  std::uint64_t data[8];
};
struct Found {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
}  // namespace lt

/// cuBLASLt's C interface, as far as it is used.
struct LtApi {
  using Handle = struct OpaqueHandle*;
  using Operation = struct OpaqueOperation*;
  using Layout = struct OpaqueLayout*;
  using Preference = struct OpaquePreference*;

  const char* (*status_string)(int status);
  int (*create)(Handle*);
  int (*operation_create)(Operation*, int compute, int scale);
  int (*operation_destroy)(Operation);
  int (*operation_set)(Operation, int attribute, const void* value, std::size_t bytes);
  int (*layout_create)(Layout*, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t step);
  int (*layout_destroy)(Layout);
  int (*layout_set)(Layout, int attribute, const void* value, std::size_t bytes);
  int (*preference_create)(Preference*);
  int (*preference_destroy)(Preference);
  int (*preference_set)(Preference, int attribute, const void* value, std::size_t bytes);
  int (*find)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, lt::Found*,
              int* found);
  int (*multiply)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,
                  const void* c, Layout, void* d, Layout, const lt::Algorithm*, void* workspace, std::size_t bytes,
                  cudaStream_t);
};

template <class F>
bool bind_lt(void* library, F*& function, const char* name) {
  function = reinterpret_cast<F*>(cpu::find_symbol(library, name));
  return function != nullptr;
}

/// Loads the library's functions; none where there is no library, or one that lacks some of them.
LtApi load_lt() {
  void* const library = compiler::nvidia_library("cublasLt", "cublas");
  LtApi a{};
  if (!library) return a;
  const bool all =
      bind_lt(library, a.status_string, "cublasLtGetStatusString") && bind_lt(library, a.create, "cublasLtCreate") &&
      bind_lt(library, a.operation_create, "cublasLtMatmulDescCreate") &&
      bind_lt(library, a.operation_destroy, "cublasLtMatmulDescDestroy") &&
      bind_lt(library, a.operation_set, "cublasLtMatmulDescSetAttribute") &&
      bind_lt(library, a.layout_create, "cublasLtMatrixLayoutCreate") &&
      bind_lt(library, a.layout_destroy, "cublasLtMatrixLayoutDestroy") &&
      bind_lt(library, a.layout_set, "cublasLtMatrixLayoutSetAttribute") &&
      bind_lt(library, a.preference_create, "cublasLtMatmulPreferenceCreate") &&
      bind_lt(library, a.preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
      bind_lt(library, a.preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
      bind_lt(library, a.find, "cublasLtMatmulAlgoGetHeuristic") && bind_lt(library, a.multiply, "cublasLtMatmul");
  return all ? a : LtApi{};
}

const LtApi& cublaslt() {
  const cpu::NoFork whole;
  static const LtApi api = load_lt();
  return api;
}

/// What fails while a plan is made ready to run: it can do without the library.
void check_lt(int status, const char* what) {
  if (status == 0) return;
  throw NoSuchKernel(std::string("kfusion: cuBLASLt: ") + what + " failed: " + cublaslt().status_string(status),
                     "cublaslt");
}

/// Never destroyed: threads may still launch at exit.
LtApi::Handle lt_handle(int device) {
  static std::array<LtApi::Handle, kMaxDevices> handles{};
  static std::array<std::once_flag, kMaxDevices> once;
  const auto i = static_cast<std::size_t>(device);
  std::call_once(once[i], [&] { check_lt(cublaslt().create(&handles[i]), "starting the library"); });
  return handles[i];
}

/// One of the library's descriptions.
template <class T, int (*LtApi::*Destroy)(T)>
class Described {
 public:
  Described() = default;
  ~Described() {
    if (value_) (cublaslt().*Destroy)(value_);
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;
  T* to() { return &value_; }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};
using Operation = Described<LtApi::Operation, &LtApi::operation_destroy>;
using Layout = Described<LtApi::Layout, &LtApi::layout_destroy>;
using Preference = Described<LtApi::Preference, &LtApi::preference_destroy>;

/// The library's matrices have neighbours along columns: it computes the transposed product.
void describe_operation(Operation& o, const LtProduct& p) {
  check_lt(cublaslt().operation_create(o.to(), lt::kComputeFloat32, lt::kFloat32), "describing a product");
  const auto set = [&](int attribute, const auto& value) {
    check_lt(cublaslt().operation_set(o.get(), attribute, &value, sizeof value), "describing a product");
  };
  set(lt::kTransposeA, std::int32_t{p.right.turned ? 0 : 1});
  set(lt::kTransposeB, std::int32_t{p.left.turned ? 1 : 0});
  std::uint32_t epilogue = p.has_bias ? lt::kBias : 0;
  if (p.activation == LtActivation::kRelu) epilogue |= lt::kRelu;
  if (p.activation == LtActivation::kGelu) epilogue |= lt::kGelu;
  set(lt::kEpilogue, epilogue == 0 ? lt::kDefault : epilogue);
}

void describe_layout(Layout& l, const LtProduct& p, const LtMatrix& m, std::int64_t rows, std::int64_t cols) {
  const int type = p.dtype == DType::kFloat16 ? lt::kFloat16 : lt::kBFloat16;
  check_lt(cublaslt().layout_create(l.to(), type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols),
                                    m.step),
           "describing a matrix");
  const auto set = [&](int attribute, const auto& value) {
    check_lt(cublaslt().layout_set(l.get(), attribute, &value, sizeof value), "describing a matrix");
  };
  set(lt::kBatchCount, static_cast<std::int32_t>(p.batches));
  set(lt::kBatchOffset, m.batch);
}

}  // namespace

struct LtKernel::Parts {
  LtProduct product;
  Layout a, b, c, d;
  lt::Found found{};
};

bool has_cublaslt() { return cublaslt().multiply != nullptr; }

LtKernel::LtKernel(const LtProduct& p, int device) : parts_(std::make_unique<Parts>()) {
  if (!has_cublaslt()) throw NoSuchKernel("kfusion: cuBLASLt was not found; pip install nvidia-cublas", "cublaslt");
  const UseDevice use(device);
  const DuringCapture capture;
  Parts& parts = *parts_;
  parts.product = p;
  Operation operation;
  describe_operation(operation, p);
  describe_layout(parts.a, p, p.right, p.right.turned ? p.cols : p.depth, p.right.turned ? p.depth : p.cols);
  describe_layout(parts.b, p, p.left, p.left.turned ? p.rows : p.depth, p.left.turned ? p.depth : p.rows);
  describe_layout(parts.c, p, p.adds ? p.added : p.result, p.cols, p.rows);
  describe_layout(parts.d, p, p.result, p.cols, p.rows);
  Preference preference;
  check_lt(cublaslt().preference_create(preference.to()), "describing a choice");
  const auto set = [&](int attribute, const auto& value) {
    check_lt(cublaslt().preference_set(preference.get(), attribute, &value, sizeof value), "describing a choice");
  };
  set(lt::kMaxWorkspace, std::size_t{32} << 20);
  set(lt::kReductions, lt::kSumsInFloat32);
  constexpr std::uint32_t kAlignment = 16;
  for (int i = 0; i < 4; ++i) set(lt::kAlignmentOfA + i, kAlignment);
  int count = 0;
  check_lt(cublaslt().find(lt_handle(device), operation.get(), parts.a.get(), parts.b.get(), parts.c.get(),
                           parts.d.get(), preference.get(), 1, &parts.found, &count),
           "looking for a kernel");
  if (count == 0) throw NoSuchKernel("kfusion: cuBLASLt has no kernel for a product", "cublaslt");
}

LtKernel::LtKernel(LtKernel&&) noexcept = default;
LtKernel::~LtKernel() = default;

std::size_t LtKernel::workspace_bytes() const { return parts_->found.workspace_bytes; }

void LtKernel::run(const LtAddresses& a, std::byte* workspace, int device, Stream stream) const {
  const UseDevice use(device);
  const DuringCapture capture;  // the library loads its kernels when it first launches them
  const Parts& p = *parts_;
  Operation operation;  // has the bias's address, which is that of a call
  describe_operation(operation, p.product);
  if (p.product.has_bias)
    check_lt(cublaslt().operation_set(operation.get(), lt::kBiasPointer, &a.bias, sizeof a.bias), "describing a bias");
  const float one = 1, beta = p.product.adds ? 1.0F : 0.0F;
  const void* const added = p.product.adds ? a.added : a.result;
  check_lt(cublaslt().multiply(lt_handle(device), operation.get(), &one, a.right, p.a.get(), a.left, p.b.get(), &beta,
                               added, p.c.get(), a.result, p.d.get(), &p.found.algorithm, workspace,
                               p.found.workspace_bytes, handle(stream)),
           "a product");
}

}  // namespace kfusion::cuda
