// Calls a function of an object file on another processor (emulated by qemu): run_object OBJECT FUNCTION BUFFER...
// Each BUFFER is a file; the function gets pointers to their bytes, which are written back. By the loader of the
// product.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cpu/codegen/elf.hpp"
#include "cpu/codegen/platform.hpp"
#include "kfusion/files.hpp"

using namespace kfusion;

int main(int count, char** arguments) {
  const std::string file = bytes_of(arguments[1]);
  const cpu::elf::Object object(file, cpu::elf::kHost);
  const cpu::CodePages pages(object.bytes(), [&](std::byte* to) { object.write(to); });
  std::vector<std::string> buffers;
  for (int i = 3; i < count; ++i) buffers.push_back(bytes_of(arguments[i]));
  std::vector<void*> p(8, nullptr);
  for (std::size_t i = 0; i < buffers.size(); ++i) p[i] = buffers[i].data();
  for (const auto& f : object.functions()) {
    if (f.name != arguments[2]) continue;
    const auto run = reinterpret_cast<void (*)(void*, void*, void*, void*, void*, void*, void*, void*)>(
        const_cast<std::byte*>(pages.data() + f.offset));
    run(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const OpenFile out(std::fopen(arguments[3 + i], "wb"));
      std::fwrite(buffers[i].data(), 1, buffers[i].size(), out.get());
    }
    return 0;
  }
  std::fprintf(stderr, "no function %s\n", arguments[2]);
  return 1;
}
