#include "python/fuse/targets.hpp"

#include "python/fuse/entry.hpp"
#include "python/stl.hpp"

namespace kfusion::fuse {
namespace {

namespace targets_detail {

void require_writable(const Call& call, const Target& t, const Array& a) {
  const auto refuse = [&](const std::string& why) {
    return call.says(t.name + " must be writable, since the function writes to it, and " + why);
  };
  if (a.framework->immutable()) throw TypeError(refuse(a.framework->name() + " arrays are not"));
  if (a.view.read_only) throw ValueError(refuse("it is read-only"));
  if (a.is_copy) throw ValueError(refuse("its elements are not aligned to their size"));
  if (self_overlapping(a.view))
    throw ValueError(refuse("elements of it share memory, with strides " + shape_text(a.view.ndim, a.view.strides)));
}

void cut(const Ranges& part, View& v) {
  for (std::size_t d = 0; d < part.size(); ++d) {
    v.data += part[d].first * v.strides[d];
    v.shape[d] = part[d].second - part[d].first;
  }
}

}  // namespace targets_detail
}  // namespace

using namespace targets_detail;

Target read_target(py::handle written) {
  const auto parts = written.cast<py::tuple>();
  return {parts[0].cast<std::size_t>(), parts[1].cast<std::string>(), parts[2].cast<std::optional<Ranges>>(),
          parts[3].cast<bool>()};
}

Arrays arrays_of(const Call& call, const std::vector<Target>& targets, const Inputs& inputs,
                 std::pmr::memory_resource* memory) {
  Arrays found(memory);
  found.reserve(targets.size());
  for (const Target& t : targets) {
    Array& a = found.emplace_back(*inputs.all().at(t.input));
    require_writable(call, t, a);
    if (t.part) cut(*t.part, a.view);
    for (std::size_t k = 0; k < inputs.all().size(); ++k)
      if (k != t.input && overlap(inputs.all()[k]->view, a.view) != Overlap::kNone)
        throw ValueError(call.says(t.name + ", which the function writes to, must not share memory with another "
                                            "array that it reads or writes: pass a copy of one of them"));
  }
  return found;
}

bool may_store(const Compiled& c, std::size_t output, const Target& target, const Array& array) {
  const View &to = array.view, &made = c.results[output];
  for (int d = 0; d < to.ndim; ++d)
    if (to.shape[d] != 1 && to.strides[d] != made.strides[d]) return false;
  return c.executable.may_overwrite(output, target.input, target.part.has_value());
}

}  // namespace kfusion::fuse
