#include "kfusion/reference/interpreted_kernel.hpp"

#include <algorithm>
#include <vector>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/loops.hpp"
#include "kfusion/reference/value.hpp"

namespace kfusion::reference {
namespace {

constexpr std::int64_t kMostElements = 1 << 17;  // that are computed together, of more than one row

/// Where the arrays of a call begin.
struct Arrays {
  const std::byte* const* loads;
  std::byte* const* stores;
  const double* parameters;
};

Extents joined(Extents a, const Extents& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Extents in_bytes(Extents strides, DType t) {
  for (std::int64_t& stride : strides) stride *= static_cast<std::int64_t>(item_bytes(t));
  return strides;
}

/// One kernel, few enough elements to compute all of a step before the next.
class Interpreter {
 public:
  Interpreter(const Kernel& k, const Arrays& arrays) : k_(k), arrays_(arrays), all_(joined(k.kept, k.reduced)) {}

  void run() {
    for (const Step& s : k_.steps) values_.push_back(evaluate(s));
    for (const Store& s : k_.stores) s.parts > 0 ? store_parts(s) : store(s);
  }

 private:
  const Extents& extents(Level level) const { return level == Level::kElement ? all_ : k_.kept; }

  /// Along the kernel's axes, of a value of a row once for each element.
  Value seen(int step, Level level) const {
    Value v = values_[at(step)];
    v.access.strides.resize(extents(level).size(), 0);
    v.access.shape = extents(level);
    return v;
  }

  /// The elements of an array that an operand says.
  Value placed(const Operand& o, const std::byte* array, Level level) const {
    Value v{o.dtype, const_cast<std::byte*>(array), {}, nullptr, true};
    v.access.shape = extents(level);
    v.access.strides = in_bytes(level == Level::kElement ? joined(o.kept, o.reduced) : o.kept, o.dtype);
    v.access.offset = o.offset * static_cast<std::int64_t>(item_bytes(o.dtype));
    return v;
  }

  Value evaluate(const Step& s) const {
    switch (s.kind) {
      case StepKind::kLoad:  // a copy: stores may lie where loads do
        return converted(placed(k_.loads[at(s.index)], arrays_.loads[s.index], s.level), compute_dtype(s.dtype));
      case StepKind::kConstant:
        return constant(s, k_.constants[at(s.index)]);
      case StepKind::kIota:
        return iota(s, k_.iotas[at(s.index)]);
      case StepKind::kMap:
        return map(s);
      case StepKind::kCast: {
        const Value x = seen(s.arguments[0], s.level);
        return is_half(s.dtype) ? rounded(x, s.dtype) : converted(x, s.dtype);
      }
      case StepKind::kReduce:
        return reduce(s);
      case StepKind::kTake:
        break;
    }
    return take(s, k_.tables[at(s.index)]);
  }

  Value constant(const Step& s, const Constant& c) const {
    const bool is_given = c.parameter >= 0, integer = is_integer(c.dtype) && !is_given;
    Value v = make_value(integer ? DType::kInt64 : DType::kFloat64, {});
    integer ? reference::store(v.first(), c.integer)
            : reference::store(v.first(), is_given ? arrays_.parameters[c.parameter] : c.value);
    v = is_half(c.dtype) && !c.wide ? rounded(v, c.dtype) : converted(v, compute_dtype(c.dtype));
    v.access.shape = extents(s.level);
    v.access.strides.assign(v.access.shape.size(), 0);
    return v;
  }

  Value iota(const Step& s, const Operand& o) const {
    const Value numbers = make_value(DType::kInt64, extents(s.level));
    std::int64_t index[2 * kMaxDims] = {};
    const Extents strides = s.level == Level::kElement ? joined(o.kept, o.reduced) : o.kept;
    const Extents& shape = numbers.access.shape;
    auto* to = reinterpret_cast<std::int64_t*>(numbers.first());
    std::int64_t number = o.offset;
    for (std::int64_t i = product(shape); i > 0; --i, ++to) {
      *to = number;
      for (std::size_t d = shape.size(); d-- > 0;) {
        number += strides[d];
        if (++index[d] < shape[d]) break;
        number -= strides[d] * shape[d];
        index[d] = 0;
      }
    }
    return is_half(s.dtype) ? rounded(numbers, s.dtype) : converted(numbers, s.dtype);
  }

  Value map(const Step& s) const {
    Value result = make_value(compute_dtype(s.dtype), extents(s.level));
    std::vector<Extents> strides = {result.access.strides};
    Pointers first = {result.first()};
    for (std::size_t i = 0; i < s.arguments.size(); ++i) {
      const Value x = seen(s.arguments[i], s.level);
      strides.push_back(x.access.strides);
      first[i + 1] = x.first();
    }
    Walk(result.access.shape, strides)(first, map_loop(s.op, compute_dtype(s.from)));
    return result;
  }

  /// Rows of elements in C order, one behind the other.
  Value as_rows(int step, DType t) const {
    const Value rows = make_value(compute_dtype(t), all_);
    copy_elements(seen(step, Level::kElement), rows);
    return rows;
  }

  Value reduce(const Step& s) const {
    const Value rows = as_rows(s.arguments[0], s.from), result = make_value(compute_dtype(s.dtype), k_.kept);
    const auto item = static_cast<std::int64_t>(item_bytes(rows.dtype));
    const std::int64_t cols = product(k_.reduced), results = static_cast<std::int64_t>(item_bytes(result.dtype));
    reduce_loop(s.op, rows.dtype)(product(k_.kept), {result.first(), rows.first()}, {results, cols * item},
                                  {cols, item});
    return result;
  }

  Value take(const Step& s, const Table& t) const {
    const Value index = converted(seen(s.arguments[0], s.level), DType::kInt64);
    const std::byte* const array = arrays_.loads[k_.loads.size() + at(s.index)];
    const Value from = placed(t.from, array, s.level), result = make_value(t.from.dtype, from.access.shape);
    const auto step = t.stride * static_cast<std::int64_t>(item_bytes(t.from.dtype));
    const Loop copy = cast_loop(t.from.dtype, t.from.dtype);
    Walk(from.access.shape, {result.access.strides, from.access.strides, index.access.strides})(
        {result.first(), from.first(), index.first()}, [&](std::int64_t n, Pointers p, const Strides& strides) {
          for (; n > 0; --n, p[0] += strides[0], p[1] += strides[1], p[2] += strides[2]) {
            const auto given = load<std::int64_t>(p[2]);
            if (!t.positions.has(given)) throw IndexError(out_of_bounds(t.function, given, t.axis, t.positions));
            copy(1, {p[0], p[1] + t.positions.position(given) * step}, strides);
          }
        });
    return converted(result, compute_dtype(s.dtype));
  }

  void store(const Store& s) const {
    const bool is_row = k_.step(s.step).level == Level::kRow && s.to.per_row();
    const Level level = is_row ? Level::kRow : Level::kElement;
    const Value from = seen(s.step, level), to = placed(s.to, stores_of(s), level);
    copy_elements(from, to);
  }

  /// Sums over rows, part by part, each a row of results.
  void store_parts(const Store& s) const {
    const DType t = k_.step(s.step).dtype;
    const Value rows = as_rows(s.step, t), sums = make_value(compute_dtype(t), k_.reduced);
    const auto item = static_cast<std::int64_t>(item_bytes(rows.dtype));
    const std::int64_t count = k_.rows(), cols = k_.cols();
    for (std::int64_t part = 0; part < s.parts; ++part) {
      const std::int64_t first = part * count / s.parts, end = (part + 1) * count / s.parts;
      reduce_loop(Op::sum, rows.dtype)(cols, {sums.first(), rows.first() + first * cols * item}, {item, item},
                                       {end - first, cols * item});
      Value to{s.to.dtype, stores_of(s), {}, nullptr, true};
      to.access.shape = k_.reduced;
      to.access.strides = in_bytes(s.to.reduced, s.to.dtype);
      to.access.offset = (s.to.offset + part * cols) * static_cast<std::int64_t>(item_bytes(s.to.dtype));
      copy_elements(sums, to);
    }
  }

  std::byte* stores_of(const Store& s) const { return arrays_.stores[&s - k_.stores.data()]; }

  const Kernel& k_;
  const Arrays& arrays_;
  const Extents all_;
  std::vector<Value> values_;
};

/// The part [begin, end) of the first of the kept axes.
Kernel part_of(const Kernel& k, std::int64_t begin, std::int64_t end) {
  Kernel part = k;
  part.kept[0] = end - begin;
  const auto move = [&](Operand& o) { o.offset += begin * o.kept[0]; };
  std::ranges::for_each(part.loads, move);
  std::ranges::for_each(part.iotas, move);
  for (Table& t : part.tables) move(t.from);
  for (Store& s : part.stores) move(s.to);
  return part;
}

/// Runs a kernel in parts of few elements, as far as rows can be told apart along the first axis.
void run_in_parts(const Kernel& k, const Arrays& arrays) {
  const std::int64_t elements = k.rows() * k.cols();
  if (elements <= kMostElements || k.kept.empty() || k.kept[0] < 2 || k.parts() > 0)
    return Interpreter(k, arrays).run();
  const std::int64_t each = std::max<std::int64_t>(1, k.kept[0] * kMostElements / elements);
  for (std::int64_t begin = 0; begin < k.kept[0]; begin += each)
    Interpreter(part_of(k, begin, std::min(k.kept[0], begin + each)), arrays).run();
}

}  // namespace

void InterpretedKernel::run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
  run_in_parts(kernel_, {loads, stores, parameters});
}

void InterpretedKernel::run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                                  std::int64_t begin, std::int64_t end) const {
  run_in_parts(part_of(kernel_, begin, end), {loads, stores, parameters});
}

}  // namespace kfusion::reference
