// A kernel as text, one line for each axis list, step, store and pair.
#include "kfusion/enumerators.hpp"
#include "kfusion/lower/kernel.hpp"
#include "kfusion/plan/names.hpp"

namespace kfusion {
namespace {

template <class Values>
std::string joined(const Values& values, const std::string& before = "") {
  std::string text;
  for (const auto v : values) text += (text.empty() ? "" : ", ") + before + std::to_string(v);
  return text;
}

/// "x[1024, 0 | 1]": the strides along kept and reduced axes; an offset in front.
std::string operand_text(const Operand& o, const std::string& name) {
  std::string text = name + '[' + (o.offset != 0 ? std::to_string(o.offset) + " + " : "") + joined(o.kept);
  if (!o.reduced.empty()) text += " | " + joined(o.reduced);
  return text + ']';
}

std::string constant_text(const Constant& c) {
  if (c.parameter >= 0) return "parameter " + std::to_string(c.parameter);
  return is_integer(c.dtype) ? std::to_string(c.integer) : std::to_string(c.value);
}

class Text {
 public:
  Text(const Kernel& k, const Graph& g) : k_(k), names_(value_names(g)) {}

  std::string all() const {
    const int sweeps = k_.separate.sweeps;
    std::string text = k_.name + ": " + std::string(kfusion::name(k_.kind)) + " (" + joined(k_.kept) + " | " +
                       joined(k_.reduced) + ")" + (sweeps > 1 ? ", " + std::to_string(sweeps) + " sweeps" : "");
    for (std::size_t i = 0; i < k_.steps.size(); ++i) text += "\n%" + std::to_string(i) + step_text(i);
    for (const Store& s : k_.stores) {
      text += (s.parts > 0 ? "\nsum %" : "\nstore %") + std::to_string(s.step) + " to " +
              operand_text(s.to, name(s.to.node));
      if (s.parts > 0) text += " in " + std::to_string(s.parts) + " parts of the rows";
    }
    for (const Pair& p : k_.pairs) {
      text += "\npair %" + std::to_string(p.first) + ", %" + std::to_string(p.second) + ": ";
      text += kfusion::name(p.kind);
    }
    return text;
  }

 private:
  std::string name(NodeId n) const { return names_[static_cast<std::size_t>(n)]; }

  std::string step_text(std::size_t i) const {
    const Step& s = k_.steps[i];
    const int sweep = k_.separate.ready[i] - (s.kind == StepKind::kReduce ? 1 : 0);
    std::string text = std::string(": ") + kfusion::name(s.dtype) + " = " + value_text(s);
    if (k_.reduced.empty()) return text;
    return text + (s.level == Level::kRow ? "  # row" : "  # element") + ", sweep " + std::to_string(sweep);
  }

  std::string value_text(const Step& s) const {
    const auto i = static_cast<std::size_t>(s.index);
    switch (s.kind) {
      case StepKind::kLoad:
        return operand_text(k_.loads[i], name(s.node));
      case StepKind::kIota:
        return "iota" + operand_text(k_.iotas[i], "");
      case StepKind::kConstant:
        return constant_text(k_.constants[i]);
      case StepKind::kCast:
        return "cast(" + joined(s.arguments, "%") + ")";
      case StepKind::kTake:
        return operand_text(k_.tables[i].from, name(k_.tables[i].from.node)) + "[%" + std::to_string(s.arguments[0]) +
               " * " + std::to_string(k_.tables[i].stride) + "]";
      default:
        return std::string(kfusion::name(s.op)) + "(" + joined(s.arguments, "%") + ")";
    }
  }

  const Kernel& k_;
  const std::vector<std::string> names_;
};

}  // namespace

std::string to_text(const Kernel& k, const Graph& g) { return Text(k, g).all(); }

std::string_view name(Pair::Kind k) { return enumerator_name(k); }

}  // namespace kfusion
