#include "python/records/graph_dict.hpp"

#include <cmath>
#include <limits>
#include <ranges>

#include "kfusion/error.hpp"
#include "kfusion/graph/fields.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

constexpr int kSchema = 1;

const char* library_name(Library l) { return l == Library::kTorch ? "torch" : "numpy"; }

// Out

template <class Values>
py::list to_list(const Values& values) {
  py::list list;
  for (const auto v : values) list.append(v);
  return list;
}

/// JSON has no NaN and no infinities: these are strings.
py::object to_object(double value) {
  if (std::isfinite(value)) return py::float_(value);
  return py::str(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

/// Puts the fields of a node's attributes into its dict.
struct FieldWriter {
  py::dict& d;
  const Node& n;

  void operator()(const char* key, const std::string& v) const { d[key] = v; }
  void operator()(const char* key, bool v) const { d[key] = v; }
  template <std::integral T>
  void operator()(const char* key, T v) const {
    d[key] = v;
  }
  void operator()(const char* key, const ConstantAttributes& c) const {
    if (n.dtype == DType::kBool)
      d[key] = c.value != 0;
    else if (is_integer(n.dtype))
      d[key] = c.integer;
    else
      d[key] = to_object(c.value);
  }
  template <std::ranges::range Values>
  void operator()(const char* key, const Values& v) const {
    d[key] = to_list(v);
  }
};

template <class Record>
py::dict record_to_dict(const Record& record) {
  py::dict d;
  visit_fields(record, [&](const char* key, const auto& v) { d[key] = v; });
  return d;
}

// In

[[noreturn]] void refuse(const std::string& where, const std::string& wanted, py::handle got) {
  throw TypeError("graph: " + where + " must be " + wanted + ", got " +
                  std::string(py::str(py::type::of(got).attr("__name__"))));
}

/// The entries of a dict, each to be taken once and none left over.
class Fields {
 public:
  Fields(std::string where, py::handle object) : where_(std::move(where)) {
    if (!PyDict_Check(object.ptr())) refuse(where_, "a dict", object);
    rest_ = py::reinterpret_steal<py::dict>(PyDict_Copy(object.ptr()));
  }

  py::object take(const char* key) {
    const py::str text(key);
    if (!rest_.contains(text)) throw ValueError("graph: " + where_ + " must have the key \"" + key + "\"");
    py::object value = rest_[text];
    if (PyDict_DelItem(rest_.ptr(), text.ptr()) != 0) throw py::error_already_set();
    return value;
  }

  bool has(const char* key) const { return rest_.contains(py::str(key)); }

  /// Refuses what was not taken.
  void finish() const {
    for (const auto& [key, value] : rest_) {
      if (!PyUnicode_Check(key.ptr())) refuse(where_ + ": a key", "a string", key);
      throw ValueError("graph: " + where_ + " must not have the key " + std::string(py::repr(key)).substr(0, 100));
    }
  }

  std::string at(const char* key) const { return where_ + "." + key; }

 private:
  std::string where_;
  py::dict rest_;
};

std::int64_t read_integer(const std::string& where, py::handle o, std::int64_t low, std::int64_t high) {
  if (!PyLong_CheckExact(o.ptr())) refuse(where, "an integer", o);
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(o.ptr(), &overflow);
  if (overflow != 0 || n < low || n > high)
    throw ValueError("graph: " + where + " must be from " + std::to_string(low) + " to " + std::to_string(high));
  return n;
}

template <std::integral T>
void read(const std::string& where, py::handle o, T& v) {
  v = static_cast<T>(read_integer(where, o, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

void read(const std::string& where, py::handle o, bool& v) {
  if (!PyBool_Check(o.ptr())) refuse(where, "a bool", o);
  v = o.ptr() == Py_True;
}

void read(const std::string& where, py::handle o, std::string& v) {
  if (!PyUnicode_CheckExact(o.ptr())) refuse(where, "a string", o);
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_AsUTF8AndSize(o.ptr(), &bytes);
  if (!text) {
    PyErr_Clear();
    throw ValueError("graph: " + where + " must be text that UTF-8 can write");
  }
  v.assign(text, static_cast<std::size_t>(bytes));
}

py::list read_list(const std::string& where, py::handle o, std::size_t longest) {
  if (!PyList_CheckExact(o.ptr())) refuse(where, "a list", o);
  if (py::len(o) > longest)
    throw ValueError("graph: " + where + " must have at most " + std::to_string(longest) + " items");
  return py::reinterpret_borrow<py::list>(o);
}

template <std::integral T>
void read(const std::string& where, py::handle o, std::vector<T>& v) {
  for (const py::handle item : read_list(where, o, kMaxDims)) read(where, item, v.emplace_back());
}

template <std::integral T, std::size_t kFew>
void read(const std::string& where, py::handle o, Few<T, kFew>& v) {
  for (const py::handle item : read_list(where, o, kMaxDims)) read(where, item, v.emplace_back());
}

void read(const std::string& where, py::handle o, std::int64_t (&v)[2]) {
  Extents both;
  read(where, o, both);
  if (both.size() != 2) throw ValueError("graph: " + where + " must have 2 items, got " + std::to_string(both.size()));
  std::copy(both.begin(), both.end(), v);
}

double read_double(const std::string& where, py::handle o) {
  if (PyFloat_CheckExact(o.ptr())) {
    const double v = PyFloat_AS_DOUBLE(o.ptr());
    if (!std::isfinite(v)) throw ValueError("graph: " + where + " must write what is not finite as a string");
    return v;
  }
  std::string text;
  if (!PyUnicode_CheckExact(o.ptr())) refuse(where, "a float or one of \"nan\", \"inf\" and \"-inf\"", o);
  read(where, o, text);
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf" || text == "-inf") return text == "inf" ? HUGE_VAL : -HUGE_VAL;
  throw ValueError("graph: " + where + " must be a float or one of \"nan\", \"inf\" and \"-inf\"");
}

/// The member of a closed set that a string names.
template <class Find>
auto read_name(const std::string& where, py::handle o, Find find) {
  std::string text;
  read(where, o, text);
  const auto found = find(text);
  if (!found) throw ValueError("graph: " + where + " is unknown");
  return *found;
}

/// Takes the fields of a node's attributes out of its dict.
struct FieldReader {
  Fields& fields;
  const Node& n;

  template <class T>
  void operator()(const char* key, T& v) const {
    read(fields.at(key), fields.take(key), v);
  }
  void operator()(const char* key, ConstantAttributes& c) const {
    const py::object o = fields.take(key);
    const std::string where = fields.at(key);
    bool truth = false;
    if (n.dtype == DType::kBool)
      read(where, o, truth), c.value = truth;
    else if (is_integer(n.dtype))
      read(where, o, c.integer);
    else
      c.value = read_double(where, o);
  }
};

std::optional<Library> library_named(const std::string& text) {
  for (const Library l : {Library::kNumpy, Library::kTorch})
    if (text == library_name(l)) return l;
  return std::nullopt;
}

/// By its own name only: other names are for people.
std::optional<Op> exact_op(const std::string& text) {
  const auto op = op_named(text);
  return op && name(*op) == text ? op : std::nullopt;
}

Node read_node(const std::string& where, py::handle o) {
  Fields fields(where, o);
  Node n;
  n.op = read_name(fields.at("op"), fields.take("op"), exact_op);
  n.dtype = read_name(fields.at("dtype"), fields.take("dtype"), dtype_named);
  n.library = read_name(fields.at("library"), fields.take("library"), library_named);
  n.place = read_name(fields.at("device"), fields.take("device"), place_named);
  read(fields.at("shape"), fields.take("shape"), n.shape);
  const std::string arguments = fields.at("arguments");
  for (const py::handle a : read_list(arguments, fields.take("arguments"), kMaxNodes))
    read(arguments, a, n.arguments.emplace_back());
  const py::object stage = fields.take("stage");
  if (!stage.is_none())
    n.stage = static_cast<StageId>(read_integer(fields.at("stage"), stage, 0, std::numeric_limits<StageId>::max()));
  n.attributes = attributes_of(n.op);
  visit_fields(n.attributes, FieldReader{fields, n});
  if (fields.has("gradient")) read(fields.at("gradient"), fields.take("gradient"), n.is_gradient);
  fields.finish();
  return n;
}

template <class Record>
Record read_record(const std::string& where, py::handle o) {
  Fields fields(where, o);
  Record record;
  visit_fields(record, [&](const char* key, auto& v) { read(fields.at(key), fields.take(key), v); });
  fields.finish();
  return record;
}

template <class T, class Read>
std::vector<T> read_items(const char* key, py::handle o, Read read_item) {
  std::vector<T> items;
  for (const py::handle item : read_list(key, o, kMaxNodes))
    items.push_back(read_item(std::string(key) + "[" + std::to_string(items.size()) + "]", item));
  return items;
}

}  // namespace

py::dict node_to_dict(const Node& n) {
  py::dict d;
  d["op"] = name(n.op);
  d["dtype"] = name(n.dtype);
  d["shape"] = to_list(n.shape);
  d["arguments"] = to_list(n.arguments);
  d["stage"] = n.stage < 0 ? py::object(py::none()) : py::int_(n.stage);
  d["library"] = library_name(n.library);
  d["device"] = to_string(n.place);
  visit_fields(n.attributes, FieldWriter{d, n});
  if (n.is_gradient) d["gradient"] = true;
  return d;
}

py::dict graph_to_dict(const Graph& g) {
  py::list nodes, stages, outputs;
  for (const Node& n : g.nodes) nodes.append(node_to_dict(n));
  for (const Stage& s : g.stages) stages.append(record_to_dict(s));
  for (const Output& o : g.outputs) outputs.append(record_to_dict(o));
  py::dict d;
  d["kfusion_graph"] = kSchema;
  d["nodes"] = nodes;
  d["stages"] = stages;
  d["outputs"] = outputs;
  return d;
}

Node node_from_dict(py::handle object) { return read_node("the node", object); }

Graph graph_from_dict(py::handle object) {
  Fields fields("the graph", object);
  read_integer("the graph's kfusion_graph", fields.take("kfusion_graph"), kSchema, kSchema);
  Graph g;
  g.nodes = read_items<Node>("nodes", fields.take("nodes"), read_node);
  g.stages = read_items<Stage>("stages", fields.take("stages"), read_record<Stage>);
  g.outputs = read_items<Output>("outputs", fields.take("outputs"), read_record<Output>);
  fields.finish();
  verify(g);
  return g;
}

}  // namespace kfusion
