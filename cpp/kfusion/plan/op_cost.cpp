#include "kfusion/plan/op_cost.hpp"

namespace kfusion {
namespace {

/// FLOPs at the peak of the vector unit, by compute type; 64-bit integers as float64, all others as float32.
struct FlopsOfClass {
  struct PerDevice {
    double float32, float64;
  } cpu, gpu;
  double quick;  ///< of half types on a GPU, where the row is kQuick
};

/// CPU: measured with tests/support/op_costs.py on a Xeon with AVX-512, one thread, data in L1: the time that a
/// function adds to a chain of additions, an element, times the peak of that core's matrix product (153 GFLOP/s in
/// float32, 74 in float64); of each class about the geometric mean. An addition takes 0.04 ns in float32 and 0.07 in
/// float64.
///
///   ns an element    float32                                            float64
///   kDivision        divide 0.13, sqrt 0.18                             0.54, 0.83
///   kExponential     exp 0.14, log 0.21, tanh 0.28, log1p 0.54          0.59, 0.71, 1.3, 1.3
///   kSine            sin 0.30, erf 0.29                                 below
///   kFunction        tan 0.79, arcsin 0.89, sinh 1.2, remainder 0.87    below
///   kRoot            cbrt 2.7, logaddexp 3.4                            2.6, 2.9
///   kPower           3.1                                                below
///
/// Functions of float64 that come from libmvec (cpp/cpu/vector_libm.hpp) were measured on another core, an EPYC (Zen 5)
/// with AVX-512, and are priced by what they take of its exponentials: exp and log 0.40 ns, tanh 0.68, log1p 0.76,
/// beside sin 0.80, erf 1.2 (kSine), tan 0.86, arcsin 1.2, sinh 1.2, remainder 3.6, which is libm's (kFunction), and
/// power 2.5. Where there is no libmvec they take about 10 times as long.
///
/// philox (kExponential) was measured there, too: 0.2 ns of neighbours by one key, in which dropout has it, else 1 ns.
///
/// With AVX2 the same core's vectorised functions take 1 to 4 times as long.
///
/// GPU: assumed, not measured. An approximation of the special function units (reciprocal, square root, exponential,
/// logarithm, sine) takes 8 times as long as a multiply-add, which is two FLOPs: 16 results a clock and multiprocessor
/// beside 128 (NVIDIA, CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"). Beside it run the
/// instructions of a software sequence, two FLOPs each: some 10 for a division, 10 to 16 for an exponential, 25 for a
/// sine, 40 and more for others. float64 is software alone.
constexpr FlopsOfClass kFlopsOfClass[kOpCosts] = {
    {{1, 1}, {1, 1}, 1},            // kSimple
    {{25, 50}, {20, 40}, 20},       // kDivision
    {{45, 70}, {32, 64}, 24},       // kExponential
    {{45, 130}, {50, 100}, 24},     // kSine
    {{160, 180}, {80, 160}, 80},    // kFunction
    {{450, 200}, {80, 160}, 80},    // kRoot
    {{450, 360}, {150, 300}, 150},  // kPower
};

}  // namespace

double work_of_flop(Op op, DType dtype, const Device& device) {
  const OpInfo& row = info(op);
  if (row.cost == OpCost::kSimple) return 1;
  const FlopsOfClass& flops = kFlopsOfClass[static_cast<std::size_t>(row.cost)];
  const FlopsOfClass::PerDevice& here = device.is_cpu ? flops.cpu : flops.gpu;
  const bool wide = dtype == DType::kFloat64 || dtype == DType::kInt64;
  const bool quick = !device.is_cpu && is_half(dtype) && row.has(kQuick);
  return (quick ? flops.quick : wide ? here.float64 : here.float32) / row.flops;
}

}  // namespace kfusion
