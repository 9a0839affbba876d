// glibc's libmvec: functions of a register of doubles, where the system has it (glibc 2.22; most of them 2.35).
#pragma once

namespace kfusion::cpu {

/// Entry points for one width of registers, named as in <math.h>; nullptr: libm is to be called lane by lane.
struct VectorLibm {
  void (*acos)(), (*acosh)(), (*asin)(), (*asinh)(), (*atan)(), (*atanh)(), (*cos)(), (*cosh)(), (*erf)(), (*sin)(),
      (*sinh)(), (*tan)(), (*atan2)(), (*hypot)(), (*pow)();
};

/// Those for registers of so many bytes.
const VectorLibm& vector_libm(int vector_bytes);

/// What vector_libm() gives where they are used, also where they are not.
const VectorLibm& vector_libm_of_system(int vector_bytes);

/// Says whether they are used where the system has them (as at the start), for tests.
void use_vector_libm(bool on);

}  // namespace kfusion::cpu
