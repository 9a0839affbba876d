#include "cpu/codegen/columns/transposed.hpp"

#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {
namespace {

using Lane = std::function<int(int)>;

std::string type_of(int lanes, int item) {
  return "<" + std::to_string(lanes) + " x i" + std::to_string(8 * item) + ">";
}

std::string mask(int lanes, const Lane& lane) {
  std::string all;
  for (int l = 0; l < lanes; ++l) all += (l > 0 ? ", i32 " : "i32 ") + std::to_string(lane(l));
  return "<" + std::to_string(lanes) + " x i32> <" + all + ">";
}

/// Lanes of two vectors of `from` lanes each.
std::string shuffled(const std::string& a, const std::string& b, int from, int item, int to, const Lane& lane) {
  const std::string type = type_of(from, item);
  return emit("shufflevector " + type + " " + a + ", " + type + " " + b + ", " + mask(to, lane));
}

std::string load(const Pointer& from, int lanes, int item) {
  return emit("load " + type_of(lanes, item) + ", ptr " + from.name + ", align 1");
}
void store(const std::string& x, const Pointer& to, int lanes, int item) {
  text().line("store " + type_of(lanes, item) + " " + x + ", ptr " + to.name + ", align 1");
}

/// Lane l of the result is lane `lane(l)` of all vectors, one after the other.
std::string picked(const std::vector<std::string>& all, int lanes, int item, const Lane& lane) {
  std::string x = all[0];
  if (all.size() == 1) return shuffled(x, "poison", lanes, item, lanes, lane);
  for (int k = 1; k < std::ssize(all); ++k)
    x = shuffled(x, all[static_cast<std::size_t>(k)], lanes, item, lanes, [&](int l) {
      const int from = lane(l);
      if (k == 1 && from < 2 * lanes) return from;
      return from / lanes == k ? lanes + from % lanes : l;
    });
  return x;
}

/// Rows and columns of squares change places, which lie side by side in the lanes.
void transpose(std::vector<std::string>& v, int lanes, int item) {
  const int side = static_cast<int>(v.size());
  for (int s = 1; s < side; s *= 2)
    for (int i = 0; i < side; ++i) {
      if ((i & s) != 0) continue;
      const std::string a = v[static_cast<std::size_t>(i)], b = v[static_cast<std::size_t>(i + s)];
      v[static_cast<std::size_t>(i)] =
          shuffled(a, b, lanes, item, lanes, [=](int p) { return (p & s) == 0 ? p : lanes + p - s; });
      v[static_cast<std::size_t>(i + s)] =
          shuffled(a, b, lanes, item, lanes, [=](int p) { return (p & s) == 0 ? p + s : lanes + p; });
    }
}

}  // namespace

void Transposed::bring(const Window& window) const { move(window, false); }
void Transposed::take_back(const Window& window) const { move(window, true); }

void Transposed::move(const Window& window, bool back) const {
  const Number pitch = at_.integer(form_.stride(layout_, form_.axes - 1));
  for (int j = 0; j < window.registers; ++j) {
    const Pointer rows = at_.row(layout_) + (window.first + std::int64_t{form_.lanes} * j) * pitch;
    const Pointer at = scratch_ + std::int64_t{form_.lanes} * j * layout_.item;
    if (!window.count) {
      whole(rows, pitch, at, back);
      continue;
    }
    when(
        *window.count == form_.lanes, [&] { whole(rows, pitch, at, back); },
        [&] { one_by_one(rows, pitch, at, *window.count, back); });
  }
}

void Transposed::whole(const Pointer& rows, const Number& pitch, const Pointer& at, bool back) const {
  if (layout_.row_elements > 0) return dense_rows(rows, at, back);
  const std::int64_t side = side_of_squares(layout_.item, form_.lanes);
  for_each(0, count_ + (side - 1), side,
           [&](const Number& element) { block(rows, pitch, at, least(element, count_ - side), back); });
}

/// Rows of few elements one after the other in memory.
void Transposed::dense_rows(const Pointer& rows, const Pointer& at, bool back) const {
  const int lanes = form_.lanes, item = layout_.item, elements = layout_.row_elements;
  const std::int64_t bytes = std::int64_t{lanes} * item;
  std::vector<std::string> from;
  for (int k = 0; k < elements; ++k) from.push_back(load(back ? at + row_bytes() * k : rows + bytes * k, lanes, item));
  for (int k = 0; k < elements; ++k) {
    const auto element = [&](int l) { return l * elements + k; };
    const auto place = [&](int l) {
      const int e = k * lanes + l;
      return e % elements * lanes + e / elements;
    };
    const std::string x = back ? picked(from, lanes, item, place) : picked(from, lanes, item, element);
    store(x, back ? rows + bytes * k : at + row_bytes() * k, lanes, item);
  }
}

/// Some elements of each row, from `element` on: as many as squares have sides.
void Transposed::block(const Pointer& rows, const Number& pitch, const Pointer& at, const Number& element,
                       bool back) const {
  const int lanes = form_.lanes, item = layout_.item, side = side_of_squares(item, lanes);
  const Pointer from = rows + element * item, to = at + element * row_bytes();
  std::vector<std::string> v;
  const auto piece = [&](int i, int square) { return from + pitch * (square * side + i); };
  for (int i = 0; i < side; ++i) {
    if (back) {
      v.push_back(load(to + row_bytes() * i, lanes, item));
      continue;
    }
    std::vector<std::string> pieces;
    for (int square = 0; square < lanes / side; ++square) pieces.push_back(load(piece(i, square), side, item));
    for (int width = side; pieces.size() > 1; width *= 2) {
      for (std::size_t k = 0; k < pieces.size() / 2; ++k)
        pieces[k] = shuffled(pieces[2 * k], pieces[2 * k + 1], width, item, 2 * width, [](int l) { return l; });
      pieces.resize(pieces.size() / 2);
    }
    v.push_back(pieces[0]);
  }
  transpose(v, lanes, item);
  for (int i = 0; i < side; ++i) {
    const std::string& x = v[static_cast<std::size_t>(i)];
    if (!back) {
      store(x, to + row_bytes() * i, lanes, item);
      continue;
    }
    for (int square = 0; square < lanes / side; ++square)
      store(lanes == side ? x : shuffled(x, "poison", lanes, item, side, [&](int l) { return square * side + l; }),
            piece(i, square), side, item);
  }
}

void Transposed::one_by_one(const Pointer& rows, const Number& pitch, const Pointer& at, const Number& count,
                            bool back) const {
  const std::string type = "i" + std::to_string(8 * layout_.item);
  for_each(0, count, 1, [&](const Number& row) {
    const Pointer from = rows + row * pitch, to = at + row * layout_.item;
    for_each(0, count_, 1, [&](const Number& element) {
      const Pointer here = from + element * layout_.item, there = to + element * row_bytes();
      const std::string x = emit("load " + type + ", ptr " + (back ? there : here).name + ", align 1");
      text().line("store " + type + " " + x + ", ptr " + (back ? here : there).name + ", align 1");
    });
  });
}

}  // namespace kfusion::cpu::ir
