// A function that keeps an executable for each signature of its arguments.
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>

#include "bindings/arguments.hpp"
#include "bindings/bindings.hpp"
#include "bindings/device.hpp"
#include "bindings/fuse/table.hpp"
#include "bindings/plan_options.hpp"
#include "execution/layout.hpp"
#include "kfusion/graph/builder.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace fuse_binding {

using fuse::Array;
using fuse::Call;
using fuse::Compiled;
using fuse::Entry;
using fuse::Inputs;
using fuse::Signature;

constexpr const char* kClassDoc = R"(FusedCallable(name, parameters, options, takes_out)
--

A function that runs as the kernels of its plan. Subclasses say what it computes:

    _guards()                        the cells and (dict of globals, name) pairs whose values the function depends on
    _prepare(args, kwargs, strides)  traces it: a kfusion._fuse.Prepared
    __wrapped__                      the plain function, called where an argument is a traced value

Args:
    name: for messages, which start with "kfusion.<name>: ".
    parameters: names of the positional parameters, likewise.
    options: dict of the plan's options, as for make_plan.
    takes_out: whether calls have the keywords out= and stream=.
)";

/// A name whose value decides what is traced.
struct Guard {
  py::object scope;  ///< the dict of a module's globals, or a cell
  py::object name;   ///< None for a cell

  bool operator==(const Guard& o) const { return scope.is(o.scope) && name.equal(o.name); }

  py::object value() const {
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
};
using Guards = std::vector<Guard>;
using Values = std::vector<py::object>;

/// Guards that a function had at some time, numbered: equal values of other names are another signature.
struct GuardList {
  Guards guards;
  std::uint64_t number = 0;
};

Guards read_guards(const py::handle& list) {
  Guards guards;
  for (const py::handle item : list) {
    const bool is_cell = PyCell_Check(item.ptr());
    const auto pair = is_cell ? py::make_tuple(item, py::none()) : item.cast<py::tuple>();
    guards.push_back({pair[0], pair[1]});
  }
  return guards;
}

Values values(const Guards& guards) {
  Values all;
  for (const Guard& g : guards) all.push_back(g.value());
  return all;
}

bool same(const Values& a, const Values& b) {
  return std::ranges::equal(a, b, [](const py::object& x, const py::object& y) { return x.is(y); });
}

/// None for C order, else the strides in elements.
py::object strides_of(const Array& a) {
  if (is_c_contiguous(a.view)) return py::none();
  return arrays::to_tuple(a.view.ndim, a.view.strides, static_cast<std::int64_t>(item_bytes(a.view.dtype)));
}

fuse::Source read_source(Call& call, const py::handle& source) {
  if (PyLong_CheckExact(source.ptr())) return {source.cast<int>(), {}, {}};
  fuse::Source s{-1, py::reinterpret_borrow<py::object>(source), {}};
  std::pmr::vector<std::uint64_t> words;
  fuse::append_words(fuse::borrow_readable(call, "an array that the function names", s.array()), words);
  s.words.assign(words.begin(), words.end());
  return s;
}

/// What one call is given.
struct Arguments {
  py::tuple args;
  py::dict kwargs;
  py::object out, stream;

  Arguments(py::tuple positional, py::dict keywords, bool takes_out)
      : args(std::move(positional)), kwargs(std::move(keywords)) {
    if (!takes_out || kwargs.empty()) return;
    out = taken("out");
    stream = taken("stream");
  }

  py::handle stream_or_none() const { return stream ? py::handle(stream) : py::handle(Py_None); }

 private:
  /// The keyword, which the function itself does not get; nothing where it is None or absent.
  py::object taken(const char* name) {
    if (!kwargs.contains(name)) return {};
    py::object value = kwargs.attr("pop")(name);
    return value.is_none() ? py::object() : value;
  }
};

class FusedCallable {
 public:
  FusedCallable(std::string name, std::vector<std::string> parameters, const py::dict& options, bool takes_out)
      : name_(std::move(name)),
        parameters_(std::move(parameters)),
        options_(read_options(options)),
        takes_out_(takes_out),
        guards_(std::make_shared<const GuardList>()) {}

  py::object call(const py::object& self, py::tuple args, py::dict kwargs) {
    const Arguments a(std::move(args), std::move(kwargs), takes_out_);
    Call call(name_.c_str(), a.stream_or_none(), arrays::Takes::kAll);
    for (int attempt = 0;; ++attempt) {
      const auto guards = current_guards();
      const Values named = values(guards->guards);  // read once: the names may be rebound at any time
      Signature s(call);
      try {
        fill(s, *guards, named, a, a.out);
      } catch (...) {  // beside a traced value arrays need be no more than that
        if (!fuse::has_traced(a.args.ptr()) && !fuse::has_traced(a.kwargs.ptr())) throw;
        return inside_trace(self, call, a);
      }
      if (s.traced()) return inside_trace(self, call, a);
      auto entry = table_.find(s);
      if (!entry && attempt == 0 && update_guards(self)) continue;
      if (!entry) entry = prepare(self, call, s, *guards, named, a);
      const Inputs inputs(call, *entry, s);
      if (inputs.unchanged()) return finish(self, call, s, *entry, inputs, a);
      table_.clear();
    }
  }

  template <class Visit>
  int traverse(const Visit& visit) const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return 0;  // a thread that a collection has stopped is changing the list: next time
    for (const auto& list : known_guards_)
      for (const Guard& g : list->guards)
        for (PyObject* object : {g.scope.ptr(), g.name.ptr()})
          if (const int stopped = visit(object)) return stopped;
    return table_.traverse(visit);
  }

  void release() {
    guards_ = std::make_shared<const GuardList>();
    known_guards_.clear();
    table_.clear();
  }

  std::size_t cached() const { return table_.size(); }
  void clear() { table_.clear(); }

 private:
  std::shared_ptr<const GuardList> current_guards() const {
    const std::lock_guard lock(mutex_);
    return guards_;
  }

  /// Whether the function depends on other names than it did.
  bool update_guards(const py::object& self) {
    Guards found = read_guards(self.attr("_guards")());
    const std::lock_guard lock(mutex_);
    if (found == guards_->guards) return false;
    const auto known = std::ranges::find_if(known_guards_, [&](const auto& list) { return list->guards == found; });
    if (known == known_guards_.end()) {
      const std::uint64_t number = known_guards_.size() + 1;  // 0 is the empty list
      known_guards_.push_back(std::make_shared<const GuardList>(GuardList{std::move(found), number}));
      guards_ = known_guards_.back();
    } else {
      guards_ = *known;
    }
    return true;
  }

  /// The plain function's nodes become part of the trace; there is no array to write to and no stream to run on.
  static py::object inside_trace(const py::object& self, const Call& call, const Arguments& a) {
    if (a.out || a.stream) throw TypeError(call.says("out= and stream= cannot be given inside a traced function"));
    return self.attr("__wrapped__")(*a.args, **a.kwargs);
  }

  void fill(Signature& s, const GuardList& guards, const Values& named, const Arguments& a,
            const py::object& out) const {
    s.add_number(guards.number);
    for (const py::object& value : named) s.add_identity(value.ptr());
    for (std::size_t i = 0; i < a.args.size(); ++i) s.add(parameter(i), PyTuple_GET_ITEM(a.args.ptr(), i));
    for (const auto& [name, value] : a.kwargs) s.add_keyword(name.ptr(), value.ptr());
    if (!out) return;
    if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) return s.add_out(out.ptr());
    for (const py::handle each : out) s.add_out(each.ptr());
  }

  const char* parameter(std::size_t i) const {
    return parameters_.empty() ? "an argument" : parameters_[std::min(i, parameters_.size() - 1)].c_str();
  }

  /// Traces and compiles. What is traced while a name that it depends on is rebound is not kept.
  std::shared_ptr<const Entry> prepare(const py::object& self, Call& call, Signature& s, const GuardList& guards,
                                       const Values& named, const Arguments& a) {
    py::list strides;
    for (const Array& x : s.arrays()) strides.append(strides_of(x));
    const py::object prepared = self.attr("_prepare")(a.args, a.kwargs, strides);
    const auto entry = std::make_shared<Entry>();
    entry->fill = prepared.attr("fill");
    entry->is_single = entry->fill.is_none();
    for (const py::handle source : prepared.attr("sources")) entry->sources.push_back(read_source(call, source));
    entry->compiled = compiled_for(prepared, Inputs(call, *entry, s), s.outs());
    if (same(named, values(guards.guards))) table_.insert(s, prepared.attr("floats").cast<std::vector<int>>(), entry);
    return entry;
  }

  std::shared_ptr<const Compiled> compiled_for(const py::object& prepared, const Inputs& inputs,
                                               const std::pmr::vector<Array>& outs) const {
    const auto is_aligned = [](const Array& a) { return fuse::is_aligned_to_vectors(a.view); };
    const bool aligned = std::ranges::all_of(inputs.all(), [&](const Array* x) { return is_aligned(*x); }) &&
                         std::ranges::all_of(outs, is_aligned);
    return fuse::compiled(prepared.attr("graph").cast<const GraphBuilder&>().graph(),
                          read_device(prepared.attr("device")), options_, aligned, outs);
  }

  py::object finish(const py::object& self, Call& call, Signature& s, const Entry& entry, const Inputs& inputs,
                    const Arguments& a) {
    if (call.has_stream_argument() && !(inputs.first() && inputs.first()->view.place.cuda))
      throw ValueError(call.says("stream applies to CUDA arrays, and the inputs are on the CPU"));
    if (a.out) return finish_into(self, call, s, entry, inputs, a);
    auto results = fuse::compute(call, *entry.compiled, inputs, s.floats().data());
    return returned(entry, fuse::hand_out(results, inputs));
  }

  static py::object returned(const Entry& entry, std::vector<py::object> objects) {
    if (entry.is_single) return std::move(objects[0]);
    py::list list(objects.size());
    for (std::size_t i = 0; i < objects.size(); ++i) list[i] = std::move(objects[i]);
    return entry.fill(list);
  }

  py::object finish_into(const py::object& self, Call& call, Signature& s, const Entry& entry, const Inputs& inputs,
                         const Arguments& a) {
    const Compiled& c = *entry.compiled;
    fuse::check_outs(call, c, inputs, s.outs());
    if (fuse::can_write(c, inputs, s.outs())) {
      fuse::compute_into(call, c, inputs, s.floats().data(), s.outs());
    } else {
      Signature fresh(call);
      const auto guards = current_guards();
      const Values named = values(guards->guards);
      fill(fresh, *guards, named, a, {});
      auto plain = table_.find(fresh);
      if (!plain || !Inputs(call, *plain, fresh).unchanged()) plain = prepare(self, call, fresh, *guards, named, a);
      fuse::copy_into(call, c.device,
                      fuse::compute(call, *plain->compiled, Inputs(call, *plain, fresh), fresh.floats().data()),
                      s.outs());
    }
    std::vector<py::object> objects;
    for (const Array& out : s.outs()) {
      out.framework->written(out.object);
      objects.push_back(py::reinterpret_borrow<py::object>(out.object));
    }
    return returned(entry, std::move(objects));
  }

  std::string name_;
  std::vector<std::string> parameters_;
  PlanOptions options_;
  bool takes_out_;
  mutable std::mutex mutex_;
  std::shared_ptr<const GuardList> guards_;
  std::vector<std::shared_ptr<const GuardList>> known_guards_;
  fuse::Table table_;
};

FusedCallable* made(PyObject* self) {
  return py::detail::is_holder_constructed(self) ? py::cast<FusedCallable*>(py::handle(self)) : nullptr;
}

/// A function's globals hold the function: what is held here Python must be able to see.
void let_python_collect(PyHeapTypeObject* type) {
  type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const FusedCallable* f = made(self);
    return f ? f->traverse([&](PyObject* object) { return visit(object, arg); }) : 0;
  };
  type->ht_type.tp_clear = [](PyObject* self) {
    if (FusedCallable* f = made(self)) f->release();
    return 0;
  };
}

py::object element_strides_of(py::handle array, const std::string& function_name, const std::string& argument) {
  Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  return strides_of(fuse::borrow_readable(call, argument.c_str(), array));
}

}  // namespace fuse_binding
}  // namespace

void bind_fuse(py::module_& m) {
  using fuse_binding::FusedCallable;
  py::class_<FusedCallable>(m, "FusedCallable", py::custom_type_setup(&fuse_binding::let_python_collect),
                            fuse_binding::kClassDoc)
      .def(py::init<std::string, std::vector<std::string>, const py::dict&, bool>(), py::arg("name"),
           py::arg("parameters"), py::arg("options"), py::arg("takes_out"),
           "__init__(self, name, parameters, options, takes_out)\n--\n\n")
      .def(
          "__call__",
          [](const py::object& self, py::args args, py::kwargs kwargs) {
            return self.cast<FusedCallable&>().call(self, std::move(args), std::move(kwargs));
          },
          "__call__(self, *args, **kwargs)\n--\n\nThe function's result.\n")
      .def(
          "_cached", [](const FusedCallable& f) { return f.cached(); },
          "_cached(self)\n--\n\nThe number of signatures that it keeps.\n")
      .def("_clear", [](FusedCallable& f) { f.clear(); }, "_clear(self)\n--\n\nForgets all signatures.\n");
  m.def("element_strides", &fuse_binding::element_strides_of, py::arg("array"), py::arg("function_name"),
        py::arg("argument"), R"(element_strides(array, function_name, argument)
--

Strides in elements of an array of any kind, None for C order (also where it must be copied to be read). Messages name
the function and the argument.
)");
}

}  // namespace kfusion
