// Steps and kernels of the CPU as LLVM's language, for tests.
#include <pybind11/pybind11.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bindings/testing/testing.hpp"
#include "cpu/codegen/form/form.hpp"
#include "cpu/codegen/form/form_key.hpp"
#include "cpu/codegen/generated.hpp"
#include "cpu/codegen/kernel_text.hpp"
#include "cpu/codegen/math/divisor.hpp"
#include "cpu/codegen/math/ops.hpp"
#include "cpu/codegen/math/random_words.hpp"
#include "cpu/codegen/rows/pieces.hpp"
#include "cpu/codegen/rows/row_plan.hpp"
#include "cpu/machine_code/libm_table.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/graph/constant.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/graph_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace bind_cpu_ir_detail {

using namespace cpu::ir;

constexpr const char* kStepDoc = R"(cpu_step_text(step, dtypes, target, lanes, result="", numbers=0)
--

A step of a CPU kernel as a function in LLVM's language, for tests: kernel(arrays, registers) takes it on so many
registers of elements. arrays: pointers to each argument's elements, the result's, and cpu_libm_table().

Args:
    step: the name of a map, "cast", or "random_words", of four registers of positions and two numbers,
        or "quotient", by one number.
    dtypes: of the arguments in memory.
    target: "avx512", "avx2", "baseline" or "aarch64".
    lanes: elements that are computed together; 1: as a row's value is computed.
    result: the dtype in memory; "" for what the map gives.
    numbers: the last so many arguments are one number each, read before the registers.

Raises:
    RuntimeError: the map does not take the dtype.
)";

const TargetFacts& target_named(const std::string& name) {
  static const TargetFacts kAvx512 = {"x86_64-unknown-linux-gnu", "x86-64-v4", "", 64, true, true, true, false};
  static const TargetFacts kAvx2 = {"x86_64-unknown-linux-gnu", "x86-64-v3", "", 32, false, true, true, false};
  static const TargetFacts kBaseline = {"x86_64-unknown-linux-gnu", "x86-64", "", 16, false, false, false, false};
  static const TargetFacts kArm = {"aarch64-unknown-linux-gnu", "generic", "", 16, false, false, true, true};
  if (name == "avx512") return kAvx512;
  if (name == "avx2") return kAvx2;
  if (name == "baseline") return kBaseline;
  if (name == "aarch64") return kArm;
  throw ValueError("kfusion: there is no target '" + name + "'");
}

DType dtype_of(const std::string& name) {
  const auto t = dtype_named(name);
  if (!t) throw ValueError("kfusion: there is no dtype '" + name + "'");
  return *t;
}

struct StepText {
  Text text;
  std::vector<DType> dtypes;
  std::size_t numbers;

  std::string array(std::size_t i) {
    return text.emit("load ptr, ptr " + text.emit("getelementptr ptr, ptr %arrays, i64 " + std::to_string(i)));
  }
  std::string place(const std::string& array, DType t, const std::string& element) {
    return text.emit("getelementptr " + std::string(memory_type(t)) + ", ptr " + array + ", i64 " + element);
  }
  Value load(const std::string& from, DType t, bool vector) {
    const std::string raw = text.emit("load " + vector_of(memory_type(t)) + ", ptr " + from + ", align 1");
    return widen({raw, t, vector}, t);
  }

  /// `step` takes so many registers of each argument together, and makes as many.
  std::string write(const std::function<std::vector<Value>(const std::vector<Value>&)>& step,
                    std::optional<DType> result, int together = 1,
                    const std::function<void(const std::vector<Value>&)>& begin = {}) {
    const Writing writing(text);
    const std::size_t count = dtypes.size(), vectors = count - numbers;
    std::vector<std::string> arrays;
    for (std::size_t i = 0; i < count + 2; ++i) arrays.push_back(array(i));
    text.libm = arrays.back();
    std::vector<Value> arguments(count);
    for (std::size_t i = vectors; i < count; ++i) {
      const Lanes number(1);
      arguments[i] = load(arrays[i], dtypes[i], false);
    }
    if (begin) begin(arguments);
    const std::string i = text.name(), next = text.name();
    text.line("br label %head");
    text.label("head");
    const std::size_t phi = text.reserve();
    const std::string more = text.emit("icmp slt i64 " + i + ", %registers");
    text.line("br i1 " + more + ", label %body, label %end");
    text.label("body");
    const std::string element = text.emit("mul i64 " + i + ", " + std::to_string(text.lanes() * together));
    std::vector<Value> taken;
    for (std::size_t k = 0; k < vectors; ++k)
      for (int j = 0; j < together; ++j) {
        const std::string at = text.emit("add i64 " + element + ", " + std::to_string(j * text.lanes()));
        taken.push_back(load(place(arrays[k], dtypes[k], at), dtypes[k], true));
      }
    taken.insert(taken.end(), arguments.begin() + static_cast<std::ptrdiff_t>(vectors), arguments.end());
    int place_of_register = 0;
    for (const Value& y : step(taken)) {
      const DType to = result.value_or(y.type);
      const std::string at = text.emit("add i64 " + element + ", " + std::to_string(place_of_register));
      text.line("store " + vector_of(memory_type(to)) + " " + narrow(broadcast(y), to).name + ", ptr " +
                place(arrays[count], to, at) + ", align 1");
      place_of_register += text.lanes();
    }
    text.line(next + " = add i64 " + i + ", 1");
    text.fill(phi, "  " + i + " = phi i64 [0, %entry], [" + next + ", %" + text.block() + "]");
    text.line("br label %head");
    text.label("end");
    text.line("ret void");
    return "define void @kernel(ptr %arrays, i64 %registers) #0 {\n" + text.body() + "}\n" +
           lines_of(text.declarations()) + "attributes #0 = { " + text.attributes() + " }\n";
  }
};

std::string step_text(const std::string& step, const std::vector<std::string>& dtypes, const std::string& target,
                      int lanes, const std::string& result, std::size_t numbers) {
  StepText t{Text(target_named(target), lanes), {}, numbers};
  for (const std::string& name : dtypes) t.dtypes.push_back(dtype_of(name));
  const std::optional<DType> to = result.empty() ? std::nullopt : std::optional(dtype_of(result));
  using Values = std::vector<Value>;
  if (step == "cast") return t.write([&](const Values& x) -> Values { return {cast(x.at(0), t.dtypes[0], *to)}; }, to);
  if (step == "random_words") {
    const auto words = [&](const Values& x) { return random_words({x.begin(), x.begin() + 4}, x.at(4), x.at(5)); };
    return t.write(words, to, 4);
  }
  if (step == "quotient") {
    std::optional<Divisor> by;
    return t.write([&](const Values& x) { return by->divide({x.at(0)}); }, to, 1,
                   [&](const Values& x) { by.emplace(x.at(1)); });
  }
  const auto op = op_named(step);
  if (!op) throw ValueError("kfusion: there is no map '" + step + "'");
  return t.write([&](const Values& x) -> Values { return {apply(*op, t.dtypes.back(), x)}; }, to);
}

constexpr const char* kKernelsDoc = R"(cpu_kernel_texts(graph, device, target)
--

The kernels of a graph's plan in LLVM's language for any target, and what they are called with, for tests. In the order
of lower()'s kernels: {text, key, functions, pieces, integers, numbers, scratch_bytes, rows, cols}, or {why} for those
that the generator does not take.
)";

py::dict kernel_call(const Kernel& k, const TargetFacts& target) {
  py::dict d;
  if (const std::string why = cpu::why_not_generated(k); !why.empty()) {
    d["why"] = why;
    return d;
  }
  const Form form(k, target, false);
  std::vector<double> numbers;
  for (const Constant& c : k.constants)
    numbers.push_back(is_float(c.dtype) ? rounded(c.value, precision(c.dtype, c.wide)) : c.value);
  d["text"] = kernel_text(form);
  d["key"] = py::bytes(key_of(form));
  d["integers"] = form.integers();
  d["numbers"] = numbers;
  const Pieces pieces(form);
  d["functions"] = functions_of(form);
  d["pieces"] = pieces.count;
  d["scratch_bytes"] = form.in_pieces ? pieces.scratch_bytes : scratch_bytes(RowPlan(form), k.cols());
  d["rows"] = form.rows();
  d["cols"] = form.cols();
  return d;
}

py::list kernel_calls(const GraphBuilder& builder, const py::dict& device, const std::string& target) {
  const Plan plan = make_plan(builder.graph(), read_device(device), options_to_run(true));
  const Lowering lowering(plan);
  py::list all;
  for (std::size_t i = 0; i < plan.groups.size(); ++i)
    if (is_loops(plan.groups[i].pattern))
      all.append(kernel_call(lowering.kernel(static_cast<int>(i)), target_named(target)));
  return all;
}

}  // namespace bind_cpu_ir_detail

void bind_cpu_ir(py::module_& m) {
  using namespace bind_cpu_ir_detail;
  m.def("cpu_kernel_texts", &kernel_calls, py::arg("graph"), py::arg("device"), py::arg("target"), kKernelsDoc);
  m.def("cpu_step_text", &step_text, py::arg("step"), py::arg("dtypes"), py::arg("target"), py::arg("lanes"),
        py::arg("result") = "", py::arg("numbers") = 0, kStepDoc);
  m.def(
      "cpu_libm_table",
      [](int vector_bytes) { return reinterpret_cast<std::uintptr_t>(cpu::ir::libm_table(vector_bytes)); },
      py::arg("vector_bytes"),
      "cpu_libm_table(vector_bytes)\n--\n\nThe address of the functions that CPU kernels call, for tests.\n");
}

}  // namespace kfusion::testing
