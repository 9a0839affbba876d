#include "bindings/fuse/guards.hpp"

#include <algorithm>

namespace kfusion::fuse {
namespace {

namespace guards_detail {

std::vector<Guard> read(const py::handle& list) {
  std::vector<Guard> guards;
  for (const py::handle item : list) {
    const bool is_cell = PyCell_Check(item.ptr());
    const auto pair = is_cell ? py::make_tuple(item, py::none()) : item.cast<py::tuple>();
    guards.push_back({pair[0], pair[1]});
  }
  return guards;
}

}  // namespace guards_detail
}  // namespace

py::object Guard::value() const {
  if (name.is_none()) return py::reinterpret_steal<py::object>(PyCell_Get(scope.ptr()));
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;  // owned: without a GIL another thread may rebind the name now
  if (PyDict_GetItemRef(scope.ptr(), name.ptr(), &found) < 0) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
#else
  PyObject* found = PyDict_GetItemWithError(scope.ptr(), name.ptr());
  if (!found && PyErr_Occurred()) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(found);
#endif
}

Values GuardList::values(std::pmr::memory_resource* memory) const {
  Values all(memory);
  all.reserve(guards.size());
  for (const Guard& g : guards) all.push_back(g.value());
  return all;
}

bool GuardList::hold(const Values& values) const {
  return std::ranges::equal(guards, values, [](const Guard& g, const py::object& v) { return g.value().is(v); });
}

bool Guards::update(const py::handle& list) {
  std::vector<Guard> found = guards_detail::read(list);
  const std::lock_guard lock(mutex_);
  if (found == current().guards) return false;
  auto known = std::ranges::find_if(known_, [&](const auto& one) { return one->guards == found; });
  if (found.empty()) {
    current_ = &none_;
  } else if (known != known_.end()) {
    current_ = known->get();
  } else {
    const std::uint64_t number = known_.size() + 1;  // 0 is the empty list
    known_.push_back(std::make_unique<const GuardList>(GuardList{std::move(found), number}));
    current_ = known_.back().get();
  }
  return true;
}

void Guards::release() {
  current_ = &none_;
  known_.clear();
}

}  // namespace kfusion::fuse
