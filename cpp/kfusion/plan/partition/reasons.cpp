#include "kfusion/plan/partition/reasons.hpp"

#include <algorithm>
#include <cstdio>

#include "kfusion/enumerators.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr int kMostScales = 8;

std::string shape_of(const Extents& e) { return shape_text(static_cast<int>(e.size()), e.data()); }

std::string extents_of(const Graph& g, NodeId n) { return shape_of(g[n].shape); }

/// "(4096, 1024)", or "the axes of extent 7 of (7, 11)" for a reduction.
std::string loop(const Graph& g, NodeId n) {
  const auto* r = std::get_if<ReduceAttributes>(&g[n].attributes);
  if (!r) return extents_of(g, n);
  std::string axes;
  for (const int a : r->axes) axes += (axes.empty() ? "" : ", ") + std::to_string(a);
  return (r->axes.size() == 1 ? "axis " : "axes ") + axes + " of " + extents_of(g, g[n].arguments[0]);
}

/// Another reader of n than `reader`, in another kernel, or empty.
std::string other_reader(const Graph& g, const Partition& p, NodeId n, NodeId reader) {
  for (const NodeId r : p.readers(n)) {
    if (p.part_of(r) != p.part_of(reader) && p.part_of(r) != p.part_of(n)) return label(g, r);
  }
  return p.is_output(n) ? "the caller" : "";
}

/// Labels of two nodes; where they belong to one call, with their ops.
std::pair<std::string, std::string> two_labels(const Graph& g, NodeId a, NodeId b) {
  const auto of = [&](NodeId n, bool same) {
    return same ? label(g, n) + " (" + std::string(name(g[n].op)) + ")" : label(g, n);
  };
  const bool same = label(g, a) == label(g, b);
  return {of(a, same), of(b, same)};
}

/// How a factor is scaled before its product.
struct Scaling {
  bool outer = false;    ///< by a number for each of its rows (of the right factor: columns), which commutes with it
  bool depth = false;    ///< by a vector along the depth, which does not
  bool widened = false;  ///< after a conversion of what has another type
};

bool varies_along(const Access& a, std::size_t axis) { return a.strides[axis] != 0 && a.shape[axis] != 1; }

/// Goes back from the factor through its casts and scales.
Scaling scaling_of(const Case& c, bool left) {
  const auto& reads = c.partition.edges_into(c.consumer);
  const auto edge = std::ranges::find(reads, c.producer, &Edge::producer);
  Scaling s;
  if (edge == reads.end() || edge->access->shape.size() < 2) return s;
  const DType dtype = c.graph[c.producer].dtype;
  NodeId n = c.producer;
  // A factor that is seen transposed is scaled along its other axis.
  const std::size_t rank = c.graph[n].shape.size();
  if (rank < 2) return s;
  const bool turned = edge->access->strides.back() != 1;
  const std::size_t depth = rank - (left != turned ? 1 : 2), outer = rank - (left != turned ? 2 : 1);
  for (int steps = 0; steps < kMostScales; ++steps) {
    const Node& node = c.graph[n];
    s.widened |= node.op == Op::cast && !is_float(c.graph[node.arguments[0]].dtype) && is_half(dtype);
    if (node.op != Op::cast && node.op != Op::multiply && node.op != Op::divide) break;
    NodeId next = -1;
    for (const Access& a : c.partition.accesses(n)) {
      const bool along = varies_along(a, depth), across = varies_along(a, outer);
      if (along && across && next < 0)
        next = a.base;
      else
        s.depth |= along, s.outer |= across && !along;
    }
    if (next < 0 || c.partition.part_of(next) < 0 || c.graph[next].shape.size() != rank) break;
    n = next;
  }
  return s;
}

/// What a product reads is computed before it.
std::string factor_sentence(const Case& c, const std::string& a, const std::string& b) {
  const bool left = c.partition.accesses(c.consumer)[0].base == c.producer;
  const Scaling s = scaling_of(c, left);
  const std::string dtype(name(c.graph[c.producer].dtype)), line = left ? "row" : "column";
  const std::string again = b + " reads each element of its operands many times, once for every tile: computing " + a +
                            " inside it would repeat that work.";
  if (!s.outer || !is_half(c.graph[c.producer].dtype)) return again;
  if (s.widened)
    return again + " The scale of each " + line + " could follow the product, but " + dtype +
           " has to be made of what is scaled in any case, and stored.";
  if (s.depth)
    return again + " The scale of each " + line + " could follow the product, but then the other factor of " + a +
           " would be rounded to " + dtype + " and stored in its place: other numbers, and as many bytes.";
  return again + " The scale of each " + line + " could follow the product, but " + a + " is rounded to " + dtype +
         " before it: these would be other numbers.";
}

std::string contraction_sentence(const Case& c, const std::string& a, const std::string& b) {
  const Partition& p = c.partition;
  if (kind(c.graph[c.consumer].op) == OpKind::kContraction) return factor_sentence(c, a, b);
  const Part &from = p.part(p.part_of(c.producer)), &to = p.part(p.part_of(c.consumer));
  const auto around_product = [](const std::string& n) {
    return "the kernel of " + n +
           " is a matrix product or convolution; besides the product it computes elementwise work on its own result, "
           "and "
           "products with the same left factor that this work reads.";
  };
  if (from.kind != WorkKind::kContraction) return around_product(b);
  if (from.reduced != 0 && !from.attention) {
    return a +
           " reduces rows of a product inside the product's kernel: all tiles of a row have to be finished before "
           "its " +
           "value is known, so " + b + " runs in a later kernel.";
  }
  if (to.reduced != 0) {
    return "the kernel of " + b + " reduces whole rows, and each row of " + a +
           "'s result is spread over many tiles of the product.";
  }
  return around_product(a);
}

/// The name of the library's function that computes n.
const std::string& function_of(const Graph& g, NodeId n) {
  if (g[n].op == Op::library_result) n = g[n].arguments[0];
  return g.attributes<LibraryCallAttributes>(n).function;
}

/// Microseconds with three digits at least.
std::string microseconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, ns < 1'000'000 ? "%.3g" : "%.0f", static_cast<double>(ns) / 1e3);
  return text;
}

/// What a loop inside another would save for a reduction of what another one gives for each row. With long rows that is
/// a launch and next to no bytes.
std::string nested_saving(const Case& c) {
  const auto reduces = [&](NodeId n) { return kind(c.graph[n].op) == OpKind::kReduce; };
  if (!reduces(c.producer) || !reduces(c.consumer)) return {};
  return "; one kernel with a loop inside another would save " + std::to_string(2 * c.graph[c.producer].nbytes()) +
         " bytes and one launch";
}

std::string kilobytes(std::int64_t bytes) { return std::to_string(bytes / 1024) + " KB"; }

std::string resources_sentence(const Case& c, const std::string& both) {
  const auto more_than = [&](std::ptrdiff_t n, const char* what, int limit) {
    return "one kernel for " + both + " would have " + std::to_string(n) + " " + what + ", more than " +
           std::to_string(limit) + ".";
  };
  if (const std::ptrdiff_t inputs = c.partition.inputs(c.merged); inputs > c.options.max_inputs)
    return more_than(inputs, "inputs", c.options.max_inputs);
  if (std::ssize(c.merged.stores) > c.options.max_outputs)
    return more_than(std::ssize(c.merged.stores), "outputs", c.options.max_outputs);
  return "one kernel for " + both + " would keep columns on chip, " + std::to_string(tile_width(c.device)) +
         " bytes of each row, " + kilobytes(c.partition.column_bytes(c.merged)) + ", and " + c.device.name + " has " +
         kilobytes(c.device.on_chip_bytes) + " for them.";
}

const std::string kInput = "an input";

}  // namespace

const std::string& label(const Graph& g, NodeId n) {
  if (const auto* input = std::get_if<InputAttributes>(&g[n].attributes))
    return input->name.empty() ? kInput : input->name;
  return g.stages[static_cast<std::size_t>(g[n].stage)].name;
}

std::string sentence(const Case& c) {
  const Graph& g = c.graph;
  const NodeId producer = c.producer, consumer = c.consumer;
  const auto [a, b] = two_labels(g, producer, consumer);
  switch (c.reason) {
    case Reason::kReductionBarrier: {
      const auto [sum, reader] =
          c.because.access ? two_labels(g, c.because.producer, c.because.consumer) : std::pair(a, b);
      return reader + " needs the result of " + sum + " over the whole array before its first element, so " + sum +
             " ends its kernel; a cooperative launch would save one launch, and one read where the array fits on chip.";
    }
    case Reason::kDomainMismatch: {
      const std::string from = loop(g, producer), to = loop(g, consumer);
      const std::string loops = from == to ? a + " and " + b + " run over different elements, each over " + from
                                           : a + " runs over " + from + " and " + b + " over " + to;
      return loops + ": no single loop visits matching elements of both" + nested_saving(c) + ".";
    }
    case Reason::kGather:
      return b + " reads " + a + " at positions that are data and may be those of any element: all of them " +
             "have to be stored before the first is read.";
    case Reason::kLibraryCall: {
      const bool by = kind(g[producer].op) == OpKind::kLibrary;
      return function_of(g, by ? producer : consumer) + " is a function of the array library, which computes " +
             (by ? a : b) + " in kernels of its own.";
    }
    case Reason::kLibraryIsFaster: {
      const bool by = kind(g[producer].op) == OpKind::kLibrary;
      const auto& call = g.attributes<LibraryCallAttributes>(by ? producer : consumer);
      return call.function + " of the library is predicted to take " + microseconds(call.library_ns) +
             " us, the kernels that would compute the same " + microseconds(call.kernels_ns) + " us.";
    }
    case Reason::kCrossDevice:
      return a + " is on " + to_string(g[producer].place) + " and " + b + " on " + to_string(g[consumer].place) +
             ": the value has to be copied from one memory to the other.";
    case Reason::kContraction:
      return contraction_sentence(c, a, b);
    case Reason::kResources:
      return resources_sentence(c, a + " and " + b);
    case Reason::kMultipleConsumers: {
      const std::string other = other_reader(g, c.partition, producer, consumer);
      return a + " is stored for " + (other.empty() ? "another reader" : other) + "; computing it again for " + b +
             " would move more bytes than reading it.";
    }
    case Reason::kNoGain:
      return "one kernel for " + a + " and " + b + " is possible, but " +
             (c.missing.empty() ? "more bytes would move than with one for each call" : c.missing) + ".";
    case Reason::kCycle:
      return "another kernel has to run between " + a + " and " + b + ": it needs the one and is needed by the other.";
    case Reason::kNotImplemented:
      return "one kernel for " + a + " and " + b + " is possible, but " + c.missing + ".";
    case Reason::kForbidden:
      return "the caller forbids one kernel for " + a + " and " + b + ".";
    case Reason::kUnfused:
      return "one kernel per stage was asked for.";
  }
  return {};
}

std::string sentence_of_siblings(const Case& c, NodeId shared) {
  const std::string both = label(c.graph, c.producer) + " and " + label(c.graph, c.consumer);
  if (c.reason == Reason::kResources) return resources_sentence(c, both);
  const Part &a = c.partition.part(c.partition.part_of(c.producer)),
             &b = c.partition.part(c.partition.part_of(c.consumer));
  std::string why = "run over different elements: " + shape_of(a.domain) + " and " + shape_of(b.domain) + ".";
  if (a.domain == b.domain) why = "run over different elements of it, " + shape_of(a.domain) + " each.";
  if (a.domain == b.domain && a.reduced != b.reduced && a.reduced != 0 && b.reduced != 0)
    why = "reduce different axes.";
  return both + " both read " + label(c.graph, shared) + ", but their kernels " + why;
}

std::string_view name(Reason r) { return enumerator_name(r); }

}  // namespace kfusion
