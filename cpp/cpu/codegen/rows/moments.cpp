#include "cpu/codegen/rows/moments.hpp"

#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

std::string floats() { return vector_of("float"); }
std::string doubles() { return vector_of("double"); }
std::string float_of(const char* op, const std::string& a, const std::string& b) {
  return emit(std::string(op) + " " + floats() + " " + a + ", " + b);
}
std::string double_of(const char* op, const std::string& a, const std::string& b) {
  return emit(std::string(op) + " " + doubles() + " " + a + ", " + b);
}
std::string widened(const std::string& x) { return emit("fpext " + floats() + " " + x + " to " + doubles()); }
std::string all_lanes(const std::string& number, DType type) { return broadcast({number, type, false}).name; }

/// Elements of each lane, in so many runs of `length`.
std::string counts(const Number& runs, const Number& length, int lanes) {
  const Number whole = quotient(length, lanes), rest = length - whole * lanes;
  const std::string more = emit("uitofp " + vector_of("i1") + " " + mask_of(rest) + " to " + doubles());
  const std::string of_run = double_of("fadd", more, all_lanes(as_double(whole), DType::kFloat64));
  return runs.is(1) ? of_run : double_of("fmul", of_run, all_lanes(as_double(runs), DType::kFloat64));
}

}  // namespace

std::string as_double(const Number& n) { return emit("sitofp i64 " + n.name() + " to double"); }

std::string sum_of_lanes(const std::string& vector) {
  return fold_lanes(vector, "double",
                    [](const std::string& a, const std::string& b) { return double_of("fadd", a, b); });
}

/// Their mean in each lane; 0 where a lane has none.
std::string RowMoments::pivot_of(const Elements& first, const Window& window) const {
  if (window.count)
    return emit("select " + vector_of("i1") + " " + mask_of(*window.count) + ", " + floats() + " " +
                first.value(argument(), 0).name + ", " + floats() + " " + splat("float", "0.0"));
  std::string sum = first.value(argument(), 0).name;
  for (int j = 1; j < form_.registers; ++j) sum = float_of("fadd", sum, first.value(argument(), j).name);
  return float_of("fmul", sum, splat("float", form_.registers == 4 ? "0.25" : form_.registers == 2 ? "0.5" : "1.0"));
}

void RowMoments::begin(Carry& carry, const std::string& pivot) {
  pivot_ = pivot;
  first_ = carry.size();
  for (int k = 0; k < 2; ++k) carry.push_back({doubles(), splat("double", "0.0")});
}

void RowMoments::begin_chunk(Carry& carry) {
  chunk_ = carry.size();
  for (int k = 0; k < 2 * form_.registers; ++k) carry.push_back({floats(), splat("float", "0.0")});
}

void RowMoments::take(Carry& carry, const Elements& elements, const Window& window) const {
  for (int j = 0; j < window.registers; ++j) {
    std::string away = float_of("fsub", elements.value(argument(), j).name, pivot_);
    if (window.count)
      away = emit("select " + vector_of("i1") + " " + mask_of(*window.count) + ", " + floats() + " " + away + ", " +
                  floats() + " " + splat("float", "0.0"));
    Carried *const sum = &carry[chunk_ + 2 * static_cast<std::size_t>(j)], *const squares = sum + 1;
    sum->name = float_of("fadd", sum->name, away);
    squares->name = float_of("fadd", squares->name, float_of("fmul", away, away));
  }
}

void RowMoments::end_chunk(Carry& carry) const {
  for (std::size_t k = 0; k < 2; ++k) {
    std::string sum = carry[chunk_ + k].name;
    for (int j = 1; j < form_.registers; ++j)
      sum = float_of("fadd", sum, carry[chunk_ + 2 * static_cast<std::size_t>(j) + k].name);
    carry[first_ + k].name = double_of("fadd", carry[first_ + k].name, widened(sum));
  }
  carry.resize(chunk_);
}

/// Both sums of u = x - the first lane's pivot (lanes have pivots of their own) go over the lanes beside one another.
RowMoments::Moments RowMoments::finish(const Carry& carry, const Number& runs, const Number& length) const {
  const auto number = [](const char* op, const std::string& a, const std::string& b) {
    return emit(std::string(op) + " double " + a + ", " + b);
  };
  const std::string pivots = widened(pivot_), away = carry[first_].name, squares = carry[first_ + 1].name;
  const std::string n = counts(runs, length, form_.lanes), elements = as_double(runs * length);
  const std::string pivot = emit("extractelement " + doubles() + " " + pivots + ", i64 0");
  const std::string from = double_of("fsub", pivots, all_lanes(pivot, DType::kFloat64));
  const std::string moved = double_of("fadd", away, double_of("fmul", n, from));
  const std::string sum = sum_of_lanes(moved);
  const std::string sum_of_squares =
      sum_of_lanes(double_of("fadd", squares, double_of("fmul", from, double_of("fadd", away, moved))));
  const std::string mean = number("fadd", pivot, number("fdiv", sum, elements));
  const std::string rounded = emit("fptrunc double " + mean + " to float");
  const std::string by = number("fsub", emit("fpext float " + rounded + " to double"), pivot);
  const std::string twice = number("fsub", number("fmul", by, elements), number("fadd", sum, sum));
  return {mean, number("fadd", sum_of_squares, number("fmul", by, twice)), sum_of_lanes(squares)};
}

Condition RowMoments::are_lost(const Moments& m) {
  text().declare("declare double @llvm.fabs.f64(double)");
  const std::string size = emit("call double @llvm.fabs.f64(double " + m.squares + ")");
  const std::string lost = emit("fcmp uge double " + size + ", 0x7FF0000000000000");
  const std::string zero = emit("fcmp oeq double " + m.mean + ", 0.0");
  const std::string most = emit("fmul double " + m.squares + ", 3.0");
  const std::string apart = emit("fcmp ogt double " + m.about_pivots + ", " + most);
  return {emit("or i1 " + emit("or i1 " + lost + ", " + zero) + ", " + apart)};
}

Value RowMoments::mean_of(const std::string& mean) const {
  return {emit("fptrunc double " + mean + " to float"), DType::kFloat32, false};
}

Value RowMoments::squares_of(const std::string& sum, const Number& count) const {
  std::string value = sum;
  if (step(pair_.second).op == Op::mean) {
    value = emit("fdiv double " + sum + ", " + as_double(count));
  }
  return mean_of(value);
}

}  // namespace kfusion::cpu::ir
