#include "cpu/codegen/math/random_words.hpp"

#include "cpu/codegen/instructions/flow.hpp"
#include "cpu/codegen/math/math.hpp"

namespace kfusion::cpu::ir {
namespace {

constexpr int kWordsOfBlock = 4;

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

/// A loop: written one after the other, the rounds took 6 of 16 ms that a dropout takes to compile.
void take_all(RandomRounds& rounds) {
  Int64Vec* const all[] = {&rounds.words[0], &rounds.words[1], &rounds.words[2],
                           &rounds.words[3], &rounds.key0,     &rounds.key1};
  Carry carry;
  for (const Int64Vec* x : all) carry.push_back({type<std::int64_t>(), x->v});
  const auto move = [&](const auto& f) {
    for (std::size_t i = 0; i < carry.size(); ++i) f(*all[i], carry[i]);
  };
  const auto take = [](Int64Vec& x, const Carried& c) { x.v = c.name; };
  for_each(0, RandomRounds::kRounds, 1, carry, [&](const Number&) {
    move(take);
    rounds.take_one();
    move([](const Int64Vec& x, Carried& c) { c.name = x.v; });
  });
  move(take);
}

/// The words of blocks, in registers of first words, of second words and so on: by a function, since it is long.
Registers words_of(const Int64Vec& block, const Int64Vec& stream, const Int64Vec& key) {
  const std::string t = type<std::int64_t>(), four = "{" + t + ", " + t + ", " + t + ", " + t + "}";
  const auto called = [&](const std::string& x, const std::string& y, const std::string& z) {
    return four + " @words(" + t + " " + x + ", " + t + " " + y + ", " + t + " " + z + ")";
  };
  text().define(called("%block", "%stream", "%key"), [&] {
    RandomRounds rounds(Int64Vec("%block"), Int64Vec("%stream"), Int64Vec("%key"));
    take_all(rounds);
    std::string all = "poison";
    for (int i = 0; i < kWordsOfBlock; ++i)
      all = emit("insertvalue " + four + " " + all + ", " + t + " " + (rounds.words[i] & Int64Vec(0xffffffff)).v +
                 ", " + std::to_string(i));
    text().line("ret " + four + " " + all);
  });
  const std::string all = emit("call fastcc " + called(block.v, stream.v, key.v));
  Registers words;
  for (int i = 0; i < kWordsOfBlock; ++i)
    words.emplace_back(emit("extractvalue " + four + " " + all + ", " + std::to_string(i)));
  return words;
}

/// Words of whole blocks from `first` on.
Registers words_of_blocks(const Int64Vec& first, const Int64Vec& stream, const Int64Vec& key) {
  const Int64Vec numbers(lane_numbers("i64", [](int lane) { return lane; }));
  const Registers words = words_of((first >> 2) + numbers, stream, key);
  const Int64Vec a[] = {zipped(0, 1, words[0], words[1]), zipped(1, 1, words[0], words[1])};
  const Int64Vec b[] = {zipped(0, 1, words[2], words[3]), zipped(1, 1, words[2], words[3])};
  return {zipped(0, 2, a[0], b[0]), zipped(1, 2, a[0], b[0]), zipped(0, 2, a[1], b[1]), zipped(1, 2, a[1], b[1])};
}

/// Each position has a block of its own, from which philox() of math.hpp chooses the same word.
Int64Vec words_one_by_one(const Int64Vec& position, const Int64Vec& stream, const Int64Vec& key) {
  const Registers words = words_of(position >> 2, stream, key);
  const auto odd = (position & Int64Vec(1)) != Int64Vec(0), upper = (position & Int64Vec(2)) != Int64Vec(0);
  return select(upper, select(odd, words[3], words[2]), select(odd, words[1], words[0]));
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
  Carry carry;
  for (const Int64Vec& x : all) carry.push_back({type<std::int64_t>(), x.v});
  const auto leave = [&](const Registers& words) {
    for (std::size_t j = 0; j < words.size(); ++j) carry[j].name = words[j].v;
  };
  const auto one_by_one = [&] {
    Registers words;
    for (const Int64Vec& x : all) words.push_back(words_one_by_one(x, of, by));
    leave(words);
  };
  if (positions.size() == kRegistersOfBlocks) {
    const std::string number = emit("extractelement " + type<std::int64_t>() + " " + all[0].v + ", i64 0");
    const Int64Vec first(broadcast({number, DType::kInt64, false}).name);
    when(are_whole_blocks(all, first), carry, [&] { leave(words_of_blocks(first, of, by)); }, one_by_one);
  } else {
    one_by_one();
  }
  std::vector<Value> words;
  for (const Carried& c : carry) words.push_back({c.name, DType::kInt64});
  return words;
}

}  // namespace kfusion::cpu::ir
