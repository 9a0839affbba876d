#include "kfusion/plan/prices/op_cost.hpp"

#include "kfusion/enumerators.hpp"

namespace kfusion {
namespace {

/// FLOPs at the peak of the vector unit, by compute type; 64-bit integers as float64, all others as float32.
struct FlopsOfClass {
  struct PerDevice {
    double float32, float64;
  } cpu, gpu;
  double quick;  ///< on a GPU, of half types where the row is kQuick, of those and float32 where it is kQuickPerRow
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
/// Functions of float64 that come from libmvec (cpp/cpu/machine_code/vector_libm.hpp) were measured on another core, an
/// EPYC (Zen 5) with AVX-512, and are priced by what they take of its exponentials: exp and log 0.40 ns, tanh 0.68,
/// log1p 0.76, beside sin 0.80, erf 1.2 (kSine), tan 0.86, arcsin 1.2, sinh 1.2, remainder 3.6, which is libm's
/// (kFunction), and power 2.5. Where there is no libmvec they take about 10 times as long.
///
/// philox (kExponential) was measured there, too: 0.2 ns of neighbours by one key, in which dropout has it, else 1 ns.
///
/// With AVX2 the same core's vectorised functions take 1 to 4 times as long.
///
/// GPU: float32 on an H200, by functions of `kfusion bench drawn` that arithmetic limits. 8192 x 4096 elements take 149
/// us for power and tanh, 130 for two sin and an exponential, 107 for sigmoid, gelu and tanh: 1.4 to 2 times what
/// instructions say, of which the special function units do 16 a clock and multiprocessor beside 128 multiply-adds.
/// Rows whose kernels hold few warps take up to twice as long as this. Functions that are quick for half types,
/// kFunction and kRoot are not measured, nor is float64, which is software alone.
constexpr FlopsOfClass kFlopsOfClass[] = {
    {{1, 1}, {1, 1}, 1},            // kSimple
    {{25, 50}, {30, 40}, 20},       // kDivision
    {{45, 70}, {60, 64}, 24},       // kExponential
    {{45, 130}, {100, 100}, 24},    // kSine
    {{160, 180}, {150, 160}, 80},   // kFunction
    {{450, 200}, {150, 160}, 80},   // kRoot
    {{450, 360}, {210, 300}, 150},  // kPower
};
static_assert(std::size(kFlopsOfClass) == kEnumerators<OpCost>);

}  // namespace

double work_of_flop(Op op, DType dtype, const Device& device) {
  const OpInfo& row = info(op);
  if (row.cost == OpCost::kSimple) return 1;
  const FlopsOfClass& flops = kFlopsOfClass[static_cast<std::size_t>(row.cost)];
  const FlopsOfClass::PerDevice& here = device.is_cpu ? flops.cpu : flops.gpu;
  const bool wide = dtype == DType::kFloat64 || dtype == DType::kInt64;
  const bool quick = !device.is_cpu && ((is_half(dtype) && row.has(kQuick)) || (!wide && row.has(kQuickPerRow)));
  return (quick ? flops.quick : wide ? here.float64 : here.float32) / row.flops;
}

}  // namespace kfusion
