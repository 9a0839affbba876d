#define KF_IR
#include "cpu/codegen/random_words.hpp"

#include "cpu/codegen/flow.hpp"
#include "cpu/vector/math.hpp"

namespace kfusion::cpu::ir {
namespace {

/// The lower (0) or upper (1) half of both vectors' lanes in turn, so many at a time.
Int64Vec zipped(int half, int together, const Int64Vec& x, const Int64Vec& y) {
  const int lanes = text().lanes();
  const std::string places = lane_numbers("i32", [&](int lane) {
    const int i = half * lanes + lane, group = i / together;
    return group % 2 * lanes + group / 2 * together + i % together;
  });
  const std::string t = type<std::int64_t>();
  return Int64Vec(
      emit("shufflevector " + t + " " + x.v + ", " + t + " " + y.v + ", " + vector_of("i32") + " " + places));
}

using Registers = std::vector<Int64Vec>;

/// Words of whole blocks from `first` on.
Registers words_of_blocks(const Int64Vec& first, const Int64Vec& stream, const Int64Vec& key) {
  const Int64Vec numbers(lane_numbers("i64", [](int lane) { return lane; })), low(0xffffffff);
  const RandomBlocks blocks((first >> 2) + numbers, stream, key);
  const auto word = [&](int i) { return blocks.words[i] & low; };
  const Int64Vec a[] = {zipped(0, 1, word(0), word(1)), zipped(1, 1, word(0), word(1))};
  const Int64Vec b[] = {zipped(0, 1, word(2), word(3)), zipped(1, 1, word(2), word(3))};
  return {zipped(0, 2, a[0], b[0]), zipped(1, 2, a[0], b[0]), zipped(0, 2, a[1], b[1]), zipped(1, 2, a[1], b[1])};
}

/// The code of the words stands once: it is long.
Registers words_one_by_one(const Registers& positions, const Int64Vec& stream, const Int64Vec& key) {
  const std::int64_t bytes = 8 * std::int64_t{text().lanes()}, all = bytes * kRegistersOfBlocks;
  const std::string type = cpu::ir::type<std::int64_t>();
  const Pointer tile = room(all);
  const auto load = [&](const Pointer& p) { return Int64Vec(emit("load " + type + ", ptr " + p.name + ", align 8")); };
  const auto store = [&](const Int64Vec& x, const Pointer& p) {
    text().line("store " + type + " " + x.v + ", ptr " + p.name + ", align 8");
  };
  for (int j = 0; j < kRegistersOfBlocks; ++j) store(positions[static_cast<std::size_t>(j)], tile + j * bytes);
  for_each(0, all, bytes, [&](const Number& at) { store(philox(load(tile + at), stream, key), tile + at); });
  Registers words;
  for (int j = 0; j < kRegistersOfBlocks; ++j) words.push_back(load(tile + j * bytes));
  return words;
}

Condition are_whole_blocks(const Registers& positions, const Int64Vec& first) {
  Int64Vec expected = first + Int64Vec(lane_numbers("i64", [](int lane) { return lane; })), wrong = first & Int64Vec(3);
  for (const Int64Vec& x : positions) {
    wrong = wrong | (x ^ expected);
    expected = expected + Int64Vec(text().lanes());
  }
  return {emit("xor i1 true, " + any(wrong != Int64Vec(0)))};
}

}  // namespace

std::vector<Value> random_words(const std::vector<Value>& positions, const Value& stream, const Value& key) {
  const Int64Vec of(broadcast(stream).name), by(broadcast(key).name);
  Registers all;
  for (const Value& p : positions) all.emplace_back(p.name);
  const std::string number = emit("extractelement " + type<std::int64_t>() + " " + all[0].v + ", i64 0");
  const Int64Vec first(broadcast({number, DType::kInt64, false}).name);
  Carry carry;
  for (const Int64Vec& x : all) carry.push_back({type<std::int64_t>(), x.v});
  const auto leave = [&](const Registers& words) {
    for (std::size_t j = 0; j < words.size(); ++j) carry[j].name = words[j].v;
  };
  when(
      are_whole_blocks(all, first), carry, [&] { leave(words_of_blocks(first, of, by)); },
      [&] { leave(words_one_by_one(all, of, by)); });
  std::vector<Value> words;
  for (const Carried& c : carry) words.push_back({c.name, DType::kInt64});
  return words;
}

}  // namespace kfusion::cpu::ir
