#include "cpu/codegen/instructions/ir.hpp"

#include <stdexcept>

namespace kfusion::cpu::ir {
namespace {

thread_local Text* current_text = nullptr;

}  // namespace

std::string Text::emit(std::string_view rhs) {
  std::string result = name();
  lines_.push_back("  " + result + " = ");
  lines_.back() += rhs;
  return result;
}

void Text::line(std::string_view instruction) {
  lines_.emplace_back("  ");
  lines_.back() += instruction;
}

void Text::label(const std::string& name) {
  lines_.push_back(name + ":");
  block_ = name;
}

std::size_t Text::reserve() {
  lines_.emplace_back();
  return lines_.size() - 1;
}

void Text::fill(std::size_t line, std::string_view text) { lines_[line] = text; }

std::string Text::stack(std::string_view type) {
  std::string result = name();
  stack_.push_back("  " + result + " = alloca ");
  stack_.back() += type;
  stack_.back() += ", align 64";
  return result;
}

void Text::define(const std::string& head, const std::function<void()>& write) {
  if (!defined_.insert(head).second) return;
  Text own(target_, lanes_);
  {
    const Writing writing(own);
    write();
  }
  declarations_.insert(own.declarations_.begin(), own.declarations_.end());
  declare("define internal fastcc " + head + " #0 {\n" + own.body() + "}");
}

std::string Text::body() const {
  std::string all = "entry:\n";
  for (const auto* part : {&stack_, &lines_})
    for (const std::string& l : *part)
      if (!l.empty()) all.append(l).push_back('\n');
  return all;
}

std::string Text::attributes() const {
  const std::string bits = std::to_string(8 * target_.vector_bytes);
  return "nounwind alignstack=64 \"no-trapping-math\"=\"true\" \"prefer-vector-width\"=\"" + bits +
         "\" \"min-legal-vector-width\"=\"" + bits + "\"";
}

std::string lines_of(const std::set<std::string>& declarations) {
  std::string all;
  for (const std::string& l : declarations) all.append(l).push_back('\n');
  return all;
}

Text& text() {
  if (current_text == nullptr) throw std::logic_error("kfusion: values without a text to write to");
  return *current_text;
}

Writing::Writing(Text& text) : before_(current_text) { current_text = &text; }
Writing::~Writing() { current_text = before_; }

std::string vector_of(std::string_view scalar) {
  const int lanes = text().lanes();
  if (lanes == 1) return std::string(scalar);
  return "<" + std::to_string(lanes) + " x " + std::string(scalar) + ">";
}

std::string splat(std::string_view scalar, std::string_view value) {
  if (text().lanes() == 1) return std::string(value);
  return "splat (" + std::string(scalar) + " " + std::string(value) + ")";
}

std::string fold_lanes(std::string vector, const std::string& scalar,
                       const std::function<std::string(const std::string&, const std::string&)>& both) {
  for (int lanes = text().lanes(); lanes > 1; lanes /= 2) {
    const std::string type = "<" + std::to_string(lanes) + " x " + scalar + ">";
    const auto half = [&](int first) {
      if (lanes == 2) return emit("extractelement " + type + " " + vector + ", i64 " + std::to_string(first));
      std::string places;
      for (int l = 0; l < lanes / 2; ++l) places += (l > 0 ? ", i32 " : "i32 ") + std::to_string(first + l);
      return emit("shufflevector " + type + " " + vector + ", " + type + " poison, <" + std::to_string(lanes / 2) +
                  " x i32> <" + places + ">");
    };
    const std::string lower = half(0), upper = half(lanes / 2);
    const Lanes halves(lanes / 2);
    vector = both(lower, upper);
  }
  return vector;
}

std::string call(std::string_view result, std::string_view function,
                 const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string types, values;
  for (const auto& [type, value] : arguments) {
    const char* const comma = types.empty() ? "" : ", ";
    types += comma + type, values += comma + type + " " + value;
  }
  const std::string name = std::string(result) + " @" + std::string(function);
  text().declare("declare " + name + "(" + types + ")");
  return text().emit("call " + name + "(" + values + ")");
}

}  // namespace kfusion::cpu::ir
