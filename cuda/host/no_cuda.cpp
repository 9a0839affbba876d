// The build without CUDA: everything that needs a device says how to get one.
#include "codegen/generate.hpp"
#include "host/compile.hpp"
#include "host/cublaslt.hpp"
#include "host/cuda.hpp"
#include "host/cudnn.hpp"
#include "host/tensor_map.hpp"

namespace kfusion::cuda {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("kfusion was built without CUDA; install a CUDA toolkit (nvcc) and reinstall with KFUSION_CUDA=ON");
}

}  // namespace

bool built() { return false; }
int device_count() noexcept { return 0; }
void require(int) { refuse(); }
DeviceInfo device_info(int) { refuse(); }

void* allocate(std::size_t, int, Stream) { refuse(); }
void deallocate(void*, int, Stream) noexcept {}
void deallocate_array(void*, std::size_t, int, bool) noexcept {}
std::size_t empty_cache() noexcept { return 0; }

void clear(void*, std::size_t, int, Stream, int) { refuse(); }

std::byte* Standing::kept(std::size_t, int, Stream) { refuse(); }

void copy(void*, const void*, std::size_t, int, Stream) { refuse(); }
void synchronize(int, Stream) { refuse(); }
void synchronize_device(int) { refuse(); }
int device_of(const void*) { refuse(); }
void wait(Stream, Stream, int) { refuse(); }
bool is_capturing(int, Stream) { refuse(); }
std::uint64_t stream_number(int, Stream) { refuse(); }

const codegen::Target& target(int) { refuse(); }
const Function& compile(const std::string&, const std::string&, int, bool) { refuse(); }
struct Compiling::Making {};
Compiling::Compiling(const std::string&, const std::string&, int, bool) { refuse(); }
Compiling::Compiling(Compiling&&) noexcept = default;
Compiling::~Compiling() = default;
const Function& Compiling::get() { refuse(); }
void encode(const codegen::BoxedMatrix&, const void*, std::byte*) { refuse(); }
codegen::Launch fitted(const Function&, const codegen::Launch&, int) { refuse(); }
void launch(const Function&, const codegen::Launch&, const void*, std::size_t, int, Stream) { refuse(); }

bool has_cublaslt() { return false; }
struct LtKernel::Parts {};
LtKernel::LtKernel(const LtProduct&, int) { refuse(); }
LtKernel::LtKernel(LtKernel&&) noexcept = default;
LtKernel::~LtKernel() = default;
std::size_t LtKernel::workspace_bytes() const { refuse(); }
void LtKernel::run(const LtAddresses&, std::byte*, int, Stream) const { refuse(); }

std::vector<double> time(const std::function<void()>&, int, bool, int) { refuse(); }
void profile(const std::function<void()>&, int) { refuse(); }

}  // namespace kfusion::cuda

namespace kfusion::cudnn {

bool is_there() noexcept { return false; }
bool is_unsupported(const Recipe&, int) { return false; }
std::shared_ptr<const Plan> make(const Recipe&, int) { cuda::refuse(); }

}  // namespace kfusion::cudnn
