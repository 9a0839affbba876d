#include "python/records/savings_dict.hpp"

namespace py = pybind11;

namespace kfusion {

py::dict to_dict(const Savings& s, bool no_ops) {
  py::dict d;
  d["unfused_bytes"] = s.unfused_bytes;
  d["fused_bytes"] = s.fused_bytes;
  d["savings_bytes"] = s.savings_bytes;
  d["savings_pct"] = s.savings_pct;
  if (!no_ops) d["speedup_estimate"] = s.speedup_estimate ? py::object(py::float_(*s.speedup_estimate)) : py::int_(0);
  return d;
}

}  // namespace kfusion
