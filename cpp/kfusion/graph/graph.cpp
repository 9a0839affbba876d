#include "kfusion/graph/graph.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

#include "kfusion/graph/fields.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

/// All NaNs are one: a graph that is read back has lost their sign.
std::int64_t bits(double value) {
  return std::bit_cast<std::int64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
}

/// Mixes 64-bit words; its result depends on nothing but them.
class Hasher {
 public:
  void add(std::int64_t word) {
    state_ ^= static_cast<std::uint64_t>(word);
    state_ = (state_ ^ (state_ >> 32)) * 0xd6e8feb86659fd93;
    state_ = (state_ ^ (state_ >> 32)) * 0xd6e8feb86659fd93;
    state_ += 0x9e3779b97f4a7c15;
  }
  void add(std::string_view text) {
    add(std::ssize(text));
    for (const char c : text) add(static_cast<std::int64_t>(c));
  }
  template <class T>
  void add(std::span<const T> values) {
    add(std::ssize(values));
    for (const T v : values) add(static_cast<std::int64_t>(v));
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(std::span(values));
  }
  template <class T, std::size_t kFew>
  void add(const Few<T, kFew>& values) {
    add(std::span(values));
  }
  void add(const std::int64_t (&pair)[2]) { add(pair[0]), add(pair[1]); }
  void add(const ConstantAttributes& c) { add(bits(c.value)), add(c.integer); }

  std::uint64_t result() const { return state_ ^ (state_ >> 32); }

 private:
  std::uint64_t state_ = 0x2545f4914f6cdd1d;
};

/// After the op's name.
Hasher begun(Op op) {
  static const auto all = [] {
    std::vector<Hasher> hashers(op_table().size());
    for (std::size_t i = 0; i < hashers.size(); ++i) hashers[i].add(name(static_cast<Op>(i)));
    return hashers;
  }();
  return all[static_cast<std::size_t>(op)];
}

void add_rest(Hasher& h, const Node& n, std::span<const NodeId> arguments) {
  h.add(static_cast<std::int64_t>(n.dtype));
  h.add(static_cast<std::int64_t>(n.library));
  h.add(n.place.on_host() ? -1 : n.place.index);
  h.add(n.shape);
  h.add(arguments);
  visit_fields(n.attributes, [&](const char*, const auto& field) { h.add(field); });
}

std::uint64_t hash(const Node& n, std::span<const NodeId> arguments) {
  Hasher h = begun(n.op);
  add_rest(h, n, arguments);
  return h.result();
}

bool same_node(const Node& a, const Node& b) { return a.stage == b.stage && same_value(a, b); }

}  // namespace

bool ConstantAttributes::operator==(const ConstantAttributes& other) const {
  return bits(value) == bits(other.value) && integer == other.integer && weak == other.weak &&
         parameter == other.parameter && wide == other.wide;
}

std::int64_t product(const Extents& e) {
  std::int64_t n = 1;
  for (const std::int64_t extent : e) n *= extent;
  return n;
}

bool is_free(const Node& n) { return n.op == Op::constant || n.op == Op::iota; }

std::int64_t Node::size() const { return product(shape); }

std::int64_t Node::nbytes() const { return size() * static_cast<std::int64_t>(item_bytes(dtype)); }

bool same_value(const Node& a, const Node& b) {
  return a.op == b.op && a.dtype == b.dtype && a.library == b.library && a.place == b.place && a.shape == b.shape &&
         a.arguments == b.arguments && a.attributes == b.attributes;
}

bool Graph::operator==(const Graph& other) const {
  return std::ranges::equal(nodes, other.nodes, same_node) &&
         std::ranges::equal(stages, other.stages, {}, &Stage::name, &Stage::name) && outputs == other.outputs;
}

std::uint64_t hash(const Node& n) { return hash(n, n.arguments); }

std::uint64_t hash_alone(const Node& n) { return hash(n, {}); }

std::uint64_t hash(const Graph& g) {
  Hasher h;
  h.add(std::ssize(g.nodes));
  for (const Node& n : g.nodes) {
    h.add(name(n.op));
    add_rest(h, n, n.arguments);
    h.add(n.stage);
  }
  h.add(std::ssize(g.stages));
  for (const Stage& s : g.stages) h.add(s.name);
  for (const Output& o : g.outputs) {
    h.add(o.name);
    h.add(o.node);
  }
  return h.result();
}

}  // namespace kfusion
