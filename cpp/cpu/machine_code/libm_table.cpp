#include "cpu/machine_code/libm_table.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "cpu/machine_code/vector_libm.hpp"

namespace kfusion::cpu::ir {
namespace {

using Table = std::array<const void*, 2 * std::size_t{kLibm}>;

template <class T, T (*f)(T)>
void lanes_of_one(T* x, const T*, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = f(x[i]);
}
template <class T, T (*f)(T, T)>
void lanes_of_two(T* x, const T* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = f(x[i], y[i]);
}
template <double (*f)(double)>
const void* one() {
  return reinterpret_cast<const void*>(&lanes_of_one<double, f>);
}
template <double (*f)(double, double)>
const void* two() {
  return reinterpret_cast<const void*>(&lanes_of_two<double, f>);
}
template <float (*f)(float)>
const void* one_of_floats() {
  return reinterpret_cast<const void*>(&lanes_of_one<float, f>);
}

/// By Libm.
using Functions = std::array<const void*, std::size_t{kLibm}>;
Functions functions_of_arrays() {
  return {one<acos>(),
          one<acosh>(),
          one<asin>(),
          one<asinh>(),
          one<atan>(),
          one<atanh>(),
          one<cos>(),
          one<cosh>(),
          one<erf>(),
          one<sin>(),
          one<sinh>(),
          one<tan>(),
          two<atan2>(),
          two<hypot>(),
          two<pow>(),
          two<fmod>(),
          one_of_floats<sinf>(),
          one_of_floats<cosf>(),
          one_of_floats<tanf>(),
          reinterpret_cast<const void*>(&lanes_of_two<float, fmodf>)};
}
Functions functions_of_registers(const VectorLibm& v) {
  void (*const all[])() = {v.acos, v.acosh, v.asin, v.asinh, v.atan,  v.atanh, v.cos, v.cosh,
                           v.erf,  v.sin,   v.sinh, v.tan,   v.atan2, v.hypot, v.pow};
  Functions functions = {};
  for (std::size_t i = 0; i < std::size(all); ++i) functions[i] = reinterpret_cast<const void*>(all[i]);
  return functions;
}

Table* new_table(int vector_bytes) {
  auto* const table = new Table;
  const Functions arrays = functions_of_arrays(),
                  registers = functions_of_registers(vector_libm_of_system(vector_bytes));
  std::copy(arrays.begin(), arrays.end(), table->begin());
  std::copy(registers.begin(), registers.end(), table->begin() + kLibm);
  return table;
}

std::atomic<const Table*> of_64, of_32, of_16;  // no static variables of functions: see `found` in vector_libm.cpp

}  // namespace

const void* const* libm_table(int vector_bytes) {
  auto& place = vector_bytes == 64 ? of_64 : vector_bytes == 32 ? of_32 : of_16;
  const Table* there = place.load(std::memory_order_acquire);
  if (there != nullptr) return there->data();
  const Table* const mine = new_table(vector_bytes);
  if (place.compare_exchange_strong(there, mine, std::memory_order_acq_rel)) return mine->data();
  delete mine;  // another thread was first
  return there->data();
}

int lanes_of_vector_libm(const TargetFacts& target, Libm f) {
  if (target.neon || f >= Libm::fmod) return 0;
  const auto i = static_cast<std::size_t>(f);
  return functions_of_registers(vector_libm(target.vector_bytes))[i] == nullptr ? 0 : target.vector_bytes / 8;
}

}  // namespace kfusion::cpu::ir
