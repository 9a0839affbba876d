// The readable form: inputs first, then one node a line, constants where they are used.
#include <charconv>
#include <cmath>
#include <ranges>

#include "kfusion/graph/fields.hpp"
#include "kfusion/graph/graph.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kCommentColumn = 60;

/// One line whatever the text holds.
std::string escaped(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (byte < 0x20 || byte == 0x7f)
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    else
      result += c;
  }
  return result;
}

std::string quoted(std::string_view text) { return '"' + escaped(text) + '"'; }

/// The fewest digits that give the value back in its own dtype.
std::string float_text(double value, DType t) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[32];
  const auto end = t == DType::kFloat64 ? std::to_chars(digits, digits + 32, value)
                                        : std::to_chars(digits, digits + 32, static_cast<float>(value));
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string constant_text(const ConstantAttributes& c, DType t) {
  if (t == DType::kBool) return c.value != 0 ? "True" : "False";
  return is_integer(t) ? std::to_string(c.integer) : float_text(c.value, t);
}

template <class Values>
std::string joined(const Values& values) {
  std::string text;
  for (const std::int64_t v : values) text += (text.empty() ? "" : ", ") + std::to_string(v);
  return text;
}

/// "%3", or a constant's value.
std::string reference(const Graph& g, NodeId id) {
  const auto* c = std::get_if<ConstantAttributes>(&g[id].attributes);
  return c ? constant_text(*c, g[id].dtype) : '%' + std::to_string(id);
}

/// What stands between the parentheses: arguments, then attributes that are not the usual ones.
class ArgumentList {
 public:
  void add(const std::string& item) { text_ += (text_.empty() ? "" : ", ") + item; }

  void operator()(const char*, const std::string& v) { add(quoted(v)); }
  void operator()(const char* key, bool v) {
    if (v) add(std::string(key) + "=True");
  }
  template <std::integral T>
  void operator()(const char* key, T v) {
    add(std::string(key) + '=' + std::to_string(v));
  }
  void operator()(const char*, const ConstantAttributes&) {}  // printed where it is used
  template <std::ranges::range Values>
  void operator()(const char* key, const Values& v) {
    if (std::string_view(key) == "strides" && std::size(v) == 0) return;  // C order
    add(std::string(key) + "=(" + joined(v) + (std::size(v) == 1 ? ",)" : ")"));
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string node_text(const Graph& g, NodeId id) {
  const Node& n = g[id];
  ArgumentList list;
  for (const NodeId a : n.arguments) list.add(reference(g, a));
  visit_fields(n.attributes, list);
  if (kind(n.op) == OpKind::kSource && n.library == Library::kTorch) list.add("torch");
  if (kind(n.op) == OpKind::kSource && !n.place.on_host()) list.add(to_string(n.place));
  std::string line = '%' + std::to_string(id) + ": " + name(n.dtype) + '[' + joined(n.shape) + "] = ";
  line += std::string(name(n.op)) + '(' + list.text() + ')';
  if (n.stage < 0) return line + '\n';
  line.append(line.size() < kCommentColumn ? kCommentColumn - line.size() : 1, ' ');
  return line + "# " + escaped(g.stages[static_cast<std::size_t>(n.stage)].name) + '\n';
}

std::string outputs_text(const Graph& g) {
  std::string text;
  for (const Output& o : g.outputs)
    text += (text.empty() ? " " : ", ") + (o.name.empty() ? "" : escaped(o.name) + '=') + reference(g, o.node);
  return "return" + text + '\n';
}

}  // namespace

std::string to_text(const Graph& g) {
  std::string inputs, rest;
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    if (g[id].op == Op::constant) continue;
    (g[id].op == Op::input ? inputs : rest) += node_text(g, id);
  }
  return inputs + rest + outputs_text(g);
}

}  // namespace kfusion
