#include "cpu/vector_libm.hpp"

#include <string>

#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

/// Names by the vector function ABI for x86-64: the instruction set's letter, lanes, a v for each argument.
VectorLibm look_up([[maybe_unused]] const std::string& isa_and_lanes) {
#if defined(__x86_64__)
  const auto find = [&, library = open_library("libmvec.so.1")](const char* arguments, const char* name) {
    if (library == nullptr) return static_cast<void (*)()>(nullptr);
    const std::string symbol = "_ZGV" + isa_and_lanes + arguments + "_" + name;
    return reinterpret_cast<void (*)()>(find_symbol(library, symbol.c_str()));
  };
  return {find("v", "acos"),  find("v", "acosh"), find("v", "asin"),   find("v", "asinh"),  find("v", "atan"),
          find("v", "atanh"), find("v", "cos"),   find("v", "cosh"),   find("v", "erf"),    find("v", "sin"),
          find("v", "sinh"),  find("v", "tan"),   find("vv", "atan2"), find("vv", "hypot"), find("vv", "pow")};
#else
  return {};
#endif
}

}  // namespace

const VectorLibm& vector_libm(int vector_bytes) {
  static const VectorLibm wide = look_up("eN8"), medium = look_up("dN4"), narrow = look_up("bN2");
  return vector_bytes == 64 ? wide : vector_bytes == 32 ? medium : narrow;
}

}  // namespace kfusion::cpu
