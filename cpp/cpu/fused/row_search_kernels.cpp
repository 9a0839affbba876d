// Searching rows, by the elements' dtype.
#include "cpu/fused/row_search.hpp"

namespace kfusion::cpu {
namespace KF_ISA {

RowLoop::Run row_search(DType elements, bool nan) {
  switch (elements) {
#define KF_FLOAT(E) \
  case DType::k##E: \
    return nan ? search_rows<E, true> : search_rows<E, false>;
    KF_FLOAT(Float16)
    KF_FLOAT(BFloat16)
    KF_FLOAT(Float32)
    KF_FLOAT(Float64)
#undef KF_FLOAT
    case DType::kBool:
      return search_rows<Bool, false>;
    case DType::kInt32:
      return search_rows<Int32, false>;
    case DType::kInt64:
      return search_rows<Int64, false>;
  }
  return nullptr;
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
