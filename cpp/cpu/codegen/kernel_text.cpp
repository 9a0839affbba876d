#include "cpu/codegen/kernel_text.hpp"

#include <functional>
#include <set>

#include "cpu/codegen/columns/columns.hpp"
#include "cpu/codegen/elements/maps.hpp"
#include "cpu/codegen/instructions/ir.hpp"
#include "cpu/codegen/rows/pieces.hpp"
#include "cpu/codegen/rows/rows.hpp"

namespace kfusion::cpu::ir {

namespace {

class Module {
 public:
  explicit Module(const Form& form) : form_(form) {}

  void add(const std::string& function, const std::function<void()>& write) {
    Text text(form_.target, form_.lanes);
    const Writing writing(text);
    write();
    functions_ += "define void @" + function + "(ptr %call, i64 %row, i64 %last_row, i64 %begin, i64 %end) #0 {\n" +
                  text.body() + "  ret void\n}\n";
    declarations_.insert(text.declarations().begin(), text.declarations().end());
    attributes_ = text.attributes();
  }
  std::string all() const {
    return functions_ + lines_of(declarations_) + "attributes #0 = { " + attributes_ + " }\n!0 = !{i32 1}\n";
  }

 private:
  const Form& form_;
  std::string functions_, attributes_;
  std::set<std::string> declarations_;
};

std::string number_of_sweep(const char* function, int sweep) { return function + std::to_string(sweep); }

}  // namespace

std::string kernel_text(const Form& form) {
  Module module(form);
  if (form.in_pieces)
    for (int i = 0; i < form.schedule().sweeps; ++i) {
      module.add(number_of_sweep("sweep", i), [&] { write_sweep(form, i); });
      module.add(number_of_sweep("finish", i), [&] { write_finish(form, i); });
    }
  else
    module.add("kernel", [&] {
      form.kernel.kind == Pattern::kPointwise ? write_map(form) : form.across ? write_columns(form) : write_rows(form);
    });
  return module.all();
}

std::vector<std::string> functions_of(const Form& form) {
  if (!form.in_pieces) return {"kernel"};
  std::vector<std::string> all;
  for (int i = 0; i < form.schedule().sweeps; ++i)
    for (const char* const function : {"sweep", "finish"}) all.push_back(number_of_sweep(function, i));
  return all;
}

}  // namespace kfusion::cpu::ir
