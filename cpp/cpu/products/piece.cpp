#include "cpu/products/piece.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kfusion/lower/schedule.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/room.hpp"

namespace kfusion::cpu {
namespace {

std::int64_t bytes_of(DType t) { return static_cast<std::int64_t>(item_bytes(t)); }

/// An operand's strides along the last of the batches' axes, rows and columns.
std::array<std::int64_t, 3> along_axes(const Operand& o, Reduces reduces) {
  const std::size_t n = o.kept.size();
  if (reduces == Reduces::kNothing) return {o.kept[n - 3], o.kept[n - 2], o.kept[n - 1]};
  if (reduces == Reduces::kRows) return {o.kept[n - 2], o.reduced[0], o.kept[n - 1]};
  return {o.kept[n - 2], o.kept[n - 1], o.reduced[0]};
}

Operand with_axes(Operand o, const std::array<std::int64_t, 3>& s, Reduces reduces) {
  if (reduces == Reduces::kNothing) {
    o.kept = {s[0], s[1], s[2]}, o.reduced = {};
  } else if (reduces == Reduces::kRows) {
    o.kept = {s[0], s[2]}, o.reduced = {s[1]};
  } else {
    o.kept = {s[0], s[1]}, o.reduced = {s[2]};
  }
  return o;
}

Given array(const Operand& o, int index, const Contraction& c) {
  const auto axes = along_axes(o, c.reduces);
  const std::int64_t item = bytes_of(o.dtype);
  Given g{Given::Kind::kArray, index, {}, axes[1] * item, axes[2] * item};
  for (std::size_t i = 0; i < c.batch_axes.size(); ++i) g.batches.push_back(o.kept[i] * item);
  return g;
}

/// The operand for a block, whose batches, if several, lie along the only axis.
Operand on_block(const Operand& o, Reduces reduces) { return with_axes(o, along_axes(o, reduces), reduces); }

/// All operands of a kernel.
template <class Visit>
void for_operands(Kernel& k, const Visit& visit) {
  for (Operand& o : k.loads) visit(o);
  for (Store& s : k.stores) visit(s.to);
}

/// Drops axes of one element, and merges neighbours where all operands allow it.
void tidy(Kernel& k, Extents Kernel::* extents, Extents Operand::* strides) {
  Extents& e = k.*extents;
  const auto erase = [&](std::size_t axis) {
    const auto without = [axis](const Extents& all) {
      Extents rest;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (i != axis) rest.push_back(all[i]);
      return rest;
    };
    e = without(e);
    for_operands(k, [&](Operand& o) { o.*strides = without(o.*strides); });
  };
  for (std::size_t i = e.size(); i-- > 0;)
    if (e[i] == 1) erase(i);
  for (std::size_t i = e.size(); i-- > 1;) {
    bool merge = true;
    for_operands(k, [&](Operand& o) { merge = merge && (o.*strides)[i - 1] == (o.*strides)[i] * e[i]; });
    if (!merge) continue;
    e[i] *= e[i - 1];
    erase(i - 1);
  }
}

/// A kernel over a block, as executors of loops want it.
LoopKernel finished(Kernel k, Reduces reduces) {
  tidy(k, &Kernel::kept, &Operand::kept);
  tidy(k, &Kernel::reduced, &Operand::reduced);
  if (reduces == Reduces::kNothing) {
    k.kind = Pattern::kPointwise;
  } else {
    if (k.reduced.empty()) {  // of one element each
      k.reduced = {1};
      for_operands(k, [](Operand& o) { o.reduced = {0}; });
    }
    k.kind = reduces == Reduces::kRows && !k.kept.empty() ? Pattern::kColumns : Pattern::kRows;
  }
  set_schedule(k);
  if (k.kind == Pattern::kRows && k.kept.empty() && k.separate.sweeps == 1) k.kind = Pattern::kFullReduction;
  return LoopKernel(k);
}

void set_extents(Kernel& k, const Block& b, Reduces reduces) {
  if (reduces == Reduces::kNothing) {
    k.kept = {b.batches, b.rows, b.cols}, k.reduced = {};
  } else if (reduces == Reduces::kRows) {
    k.kept = {b.batches, b.cols}, k.reduced = {b.rows};
  } else {
    k.kept = {b.batches, b.rows}, k.reduced = {b.cols};
  }
}

/// Takes steps of the epilogue, with what they are made of, over to another kernel.
class Taker {
 public:
  Taker(const Contraction& c, const Block& block) : c_(c), from_(c.epilogue), block_(block) {
    to.name = from_.name;
    to.constants = from_.constants;
    place.assign(from_.steps.size(), -1);
  }

  /// Those that `wanted` are made of, but for what has a place already.
  void take(const std::vector<int>& wanted) {
    std::vector<char> needed(from_.steps.size());
    for (const int s : wanted) needed[at(s)] = true;
    for (std::size_t s = needed.size(); s-- > 0;)
      if (needed[s] && place[s] < 0)
        for (const int a : from_.steps[s].arguments) needed[at(a)] = true;
    for (std::size_t s = 0; s < needed.size(); ++s)
      if (needed[s] && place[s] < 0) place[s] = add(from_.steps[s]);
  }

  int push(Step s) {
    to.steps.push_back(std::move(s));
    return static_cast<int>(to.steps.size()) - 1;
  }

  int constant(DType dtype, double value) {
    Step s;
    s.kind = StepKind::kConstant, s.op = Op::constant, s.dtype = s.from = dtype;
    s.index = static_cast<int>(to.constants.size());
    to.constants.push_back({dtype, value, 0, -1});
    return push(std::move(s));
  }

  int integer(DType dtype, std::int64_t value) {
    const int s = constant(dtype, 0);
    to.constants.back().integer = value;
    return s;
  }

  int add_load(const Operand& o, const Given& given) {
    to.loads.push_back(o), loads.push_back(given);
    return static_cast<int>(to.loads.size()) - 1;
  }

  Kernel to;
  std::vector<Given> loads, stores;
  std::vector<int> place;  ///< by step of the epilogue: in the kernel

 private:
  int add(Step s) {
    for (int& a : s.arguments) a = place[at(a)];
    s.pair = -1;
    if (s.kind == StepKind::kLoad) {
      if (c_.product_of(from_.loads[at(s.index)]) >= 0) s.dtype = s.from = compute_dtype(s.dtype);
      s.index = load(s.index);
    }
    return push(std::move(s));
  }

  int load(int index) {
    const Operand& o = from_.loads[at(index)];
    const int product = c_.product_of(o);
    if (product < 0) return add_load(on_block(o, c_.reduces), array(o, index, c_));
    Operand elements = with_axes(o, {block_.rows * block_.cols, block_.cols, 1}, c_.reduces);
    elements.offset = 0, elements.dtype = compute_dtype(o.dtype);
    return add_load(elements, {Given::Kind::kProduct, product});
  }

  const Contraction& c_;
  const Kernel& from_;
  const Block block_;
};

Piece piece_of(Taker& t, const Contraction& c, Reduces reduces) {
  return {c.batch_axes, finished(std::move(t.to), reduces), std::move(t.loads), std::move(t.stores)};
}

/// A partial result: elements along the kept axes, which are one behind the other.
Operand partial(DType dtype, const Block& b, Reduces reduces) {
  Operand o;
  o.dtype = dtype;
  const std::int64_t kept = reduces == Reduces::kRows ? b.cols : b.rows;
  return with_axes(
      std::move(o),
      reduces == Reduces::kRows ? std::array<std::int64_t, 3>{kept, 0, 1} : std::array<std::int64_t, 3>{kept, 1, 0},
      reduces);
}

std::vector<int> reductions_of(const Kernel& k) {
  std::vector<int> found;
  for (int s = 0; s < std::ssize(k.steps); ++s)
    if (k.step(s).kind == StepKind::kReduce) found.push_back(s);
  return found;
}

Step map(Op op, DType dtype, std::vector<int> arguments, DType from) {
  Step s;
  s.kind = StepKind::kMap, s.op = op, s.dtype = dtype, s.from = from, s.arguments = std::move(arguments);
  return s;
}

/// Makes the kernel that combines partial results.
class Combiner {
 public:
  Combiner(const Contraction& c, const Block& block, std::int64_t parts)
      : c_(c), k_(c.epilogue), block_(block), parts_(parts), t_(c, block) {}

  Piece run() {
    const std::vector<int> reductions = reductions_of(k_);
    for (int i = 0; i < std::ssize(reductions); ++i) combine(reductions[at(i)], i);
    for (int i = 0; i < std::ssize(k_.stores); ++i) {
      const Store& s = k_.stores[at(i)];
      t_.take({s.step});
      Operand to = with_parts(on_block(s.to, c_.reduces), 0);
      t_.to.stores.push_back({t_.place[at(s.step)], std::move(to)});
      t_.stores.push_back(array(s.to, i, c_));
    }
    set_extents(t_.to, block_, c_.reduces);
    t_.to.reduced = {parts_};
    return piece_of(t_, c_, Reduces::kRows);  // parts lie apart
  }

 private:
  const Step& step(int s) const { return k_.step(s); }

  Operand with_parts(Operand o, std::int64_t stride) const {
    o.reduced = {stride};
    return o;
  }

  int load(int index, DType dtype) {
    const std::int64_t kept = block_.size() / (c_.reduces == Reduces::kRows ? block_.rows : block_.cols);
    Step s;
    s.dtype = s.from = dtype;
    s.index = t_.add_load(with_parts(partial(dtype, block_, c_.reduces), kept), {Given::Kind::kPartial, index});
    return t_.push(std::move(s));
  }

  int reduce(Op op, const Step& like, int argument) {
    Step s = like;
    s.op = op, s.from = t_.to.step(argument).dtype, s.arguments = {argument}, s.pair = -1;
    return t_.push(std::move(s));
  }

  void combine(int reduction, int index) {
    const Step& s = step(reduction);
    int elements = load(index, compute_dtype(s.dtype));
    const auto pair = std::ranges::find(k_.pairs, reduction, &Pair::second);
    if (pair != k_.pairs.end() && pair->kind == Pair::Kind::kShifted) elements = rescaled(elements, pair->first);
    if (pair != k_.pairs.end() && pair->kind == Pair::Kind::kFound) elements = chosen(elements, pair->first);
    int result = reduce(s.op == Op::mean ? Op::sum : s.op, s, elements);
    if (s.op == Op::mean) {
      const std::int64_t n = c_.reduces == Reduces::kRows ? c_.rows : c_.cols;
      const int count = t_.constant(compute_dtype(s.dtype), static_cast<double>(n));
      result = t_.push(map(Op::divide, compute_dtype(s.dtype), {result, count}, compute_dtype(s.dtype)));
    }
    t_.place[at(reduction)] = result;
  }

  /// The sums of exp(x - m) of each part, m its own maximum, as those of exp(x - the maximum of all). A part of which
  /// all is -inf has no sum.
  int rescaled(int sums, int first) {
    const DType type = t_.to.step(sums).dtype;
    const std::vector<int> reductions = reductions_of(k_);
    const int index = static_cast<int>(std::ranges::find(reductions, first) - reductions.begin());
    const int own = load(index, type), all = t_.place[at(first)];
    const int lowest = t_.constant(type, -std::numeric_limits<double>::infinity()), zero = t_.constant(type, 0);
    const auto push = [&](Op op, DType dtype, std::vector<int> arguments) {
      return t_.push(map(op, dtype, std::move(arguments), type));
    };
    const int factor = push(Op::exp, type, {push(Op::subtract, type, {own, all})});
    const int scaled = push(Op::multiply, type, {sums, factor});
    const int counted = push(Op::where, type, {push(Op::equal, DType::kBool, {own, lowest}), zero, scaled});
    return push(Op::where, type, {push(Op::equal, DType::kBool, {own, all}), sums, counted});
  }

  /// Positions of the parts that have the extreme of all, or a NaN as it then is; no position elsewhere.
  int chosen(int positions, int first) {
    const std::vector<int> reductions = reductions_of(k_);
    const int index = static_cast<int>(std::ranges::find(reductions, first) - reductions.begin());
    const DType type = compute_dtype(step(first).dtype), integers = t_.to.step(positions).dtype;
    const int own = load(index, type), all = t_.place[at(first)];
    const int equal = t_.push(map(Op::equal, DType::kBool, {own, all}, type));
    const int nan = t_.push(map(Op::isnan, DType::kBool, {own}, type));
    const int is_it = t_.push(map(Op::logical_or, DType::kBool, {equal, nan}, DType::kBool));
    return t_.push(map(Op::where, integers, {is_it, positions, t_.integer(integers, INT32_MAX)}, integers));
  }

  const Contraction& c_;
  const Kernel& k_;
  const Block block_;
  const std::int64_t parts_;
  Taker t_;
};

}  // namespace

std::vector<std::int64_t> block_extents(std::int64_t extent, std::int64_t step) {
  const std::int64_t rest = extent % step;
  if (rest == 0) return {step};
  return extent < step ? std::vector{rest} : std::vector{step, rest};
}

std::int64_t bytes_for_flops(double flops) {
  constexpr double kFlopsPerByte = 10;
  return static_cast<std::int64_t>(std::min(flops / kFlopsPerByte, 1e15));
}

Piece whole_piece(const Contraction& c, const Block& block) {
  Taker t(c, block);
  for (int i = 0; i < std::ssize(c.epilogue.stores); ++i) {
    const Store& s = c.epilogue.stores[at(i)];
    t.take({s.step});
    t.to.stores.push_back({t.place[at(s.step)], on_block(s.to, c.reduces)});
    t.stores.push_back(array(s.to, i, c));
  }
  for (const Pair& p : c.epilogue.pairs) {
    const int first = t.place[at(p.first)], second = t.place[at(p.second)];
    if (first < 0 || second < 0 || p.kind == Pair::Kind::kFound) continue;
    for (const int s : {first, second}) t.to.steps[at(s)].pair = static_cast<int>(t.to.pairs.size());
    t.to.pairs.push_back({p.kind, first, second});
  }
  set_extents(t.to, block, c.reduces);
  return piece_of(t, c, c.reduces);
}

Piece partial_piece(const Contraction& c, const Block& block) {
  Taker t(c, block);
  const std::vector<int> reductions = reductions_of(c.epilogue);
  t.take(reductions);
  for (int i = 0; i < std::ssize(reductions); ++i) {
    const int s = t.place[at(reductions[at(i)])];
    Step& step = t.to.steps[at(s)];
    if (step.op == Op::mean) step.op = Op::sum;
    t.to.stores.push_back({s, partial(compute_dtype(step.dtype), block, c.reduces)});
    t.stores.push_back({Given::Kind::kPartial, i});
  }
  set_extents(t.to, block, c.reduces);
  return piece_of(t, c, c.reduces);
}

Piece combining_piece(const Contraction& c, const Block& block, std::int64_t parts) {
  return Combiner(c, block, parts).run();
}

Piece weights_piece(const Contraction& c, const Block& block) {
  const Pair& pair = c.epilogue.pairs.at(0);
  const DType type = compute_dtype(c.epilogue.step(pair.first).dtype);
  const int exponentials = c.epilogue.step(pair.second).arguments[0];
  Taker t(c, block);
  t.take({pair.first});
  const int largest = t.place[at(pair.first)];
  const int lowest = t.constant(type, -std::numeric_limits<double>::infinity()), zero = t.constant(type, 0);
  const int nothing = t.push(map(Op::equal, DType::kBool, {largest, lowest}, type));
  t.place[at(pair.first)] = t.push(map(Op::where, type, {nothing, zero, largest}, type));
  t.take({pair.second});
  Operand elements = with_axes({}, {block.rows * block.cols, block.cols, 1}, c.reduces);
  elements.dtype = type;
  t.to.stores = {{t.place[at(exponentials)], elements},
                 {largest, partial(type, block, c.reduces)},
                 {t.place[at(pair.second)], partial(type, block, c.reduces)}};
  t.stores = {{Given::Kind::kProduct, 1}, {Given::Kind::kPartial, 0}, {Given::Kind::kPartial, 1}};
  set_extents(t.to, block, c.reduces);
  return piece_of(t, c, c.reduces);
}

std::int64_t batch_offset(std::int64_t index, const Extents& axes, const Extents& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = axes.size(); i-- > 1; index /= axes[i]) offset += index % axes[i] * strides[i];
  return offset + index * strides[0];
}

void run_piece(const Piece& piece, const Places& places, const Origin& origin, bool stream) {
  const auto address = [&](const Given& g, auto* const* arrays) -> std::byte* {
    if (g.kind == Given::Kind::kProduct) return places.products[g.index];
    if (g.kind == Given::Kind::kPartial) return places.partials[g.index];
    return const_cast<std::byte*>(arrays[g.index]) + batch_offset(origin.batch, piece.batch_axes, g.batches) +
           origin.row * g.row + origin.col * g.col;
  };
  Room<std::byte*, 16> loads(piece.loads.size()), stores(piece.stores.size());
  for (std::size_t i = 0; i < piece.loads.size(); ++i) loads[i] = address(piece.loads[i], places.loads);
  for (std::size_t i = 0; i < piece.stores.size(); ++i) stores[i] = address(piece.stores[i], places.stores);
  piece.kernel.run_part(loads.data(), stores.data(), places.parameters, stream);
}

std::vector<DType> partial_types(const Contraction& c) {
  std::vector<DType> types;
  for (const int s : reductions_of(c.epilogue)) types.push_back(compute_dtype(c.epilogue.step(s).dtype));
  return types;
}

}  // namespace kfusion::cpu
