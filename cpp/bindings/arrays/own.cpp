#include "bindings/arrays/own.hpp"

#include <cstring>
#include <new>
#include <optional>

#include "bindings/arrays/numpy.hpp"
#include "bindings/gil.hpp"
#include "cpu/buffer_pool.hpp"

namespace kfusion::arrays {
namespace {

DeviceArray empty(const View& layout) {
  DeviceArray a{std::make_shared<Buffer>(static_cast<std::size_t>(layout.nbytes()), layout.place), layout};
  a.view.data = a.buffer->data;
  return a;
}

class Own final : public Framework {
 public:
  std::string name() const override { return "kfusion"; }
  ArrayLibrary library() const override { return ArrayLibrary::kOwn; }
  bool knows_stream() const override { return true; }
  void borrow(Call& call, const char*, Array& a) const override {
    a.view = a.object.cast<const DeviceArray&>().view;
    call.stream(*this, a.view.place.index);
  }
};

}  // namespace

// Our memory is ordered on the legacy default stream: a user's own stream may be gone when the array is freed.
Buffer::Buffer(std::size_t bytes_, Place place_) : bytes(bytes_), place(place_) {
  if (bytes == 0) return;
  data = static_cast<std::byte*>(place.cuda ? cuda::allocate(bytes, place.index, 0) : cpu::pool_allocate(bytes));
  if (!data) throw std::bad_alloc();
}

// Runs on any thread, with the GIL or without, also after Python is finalised: a deleter of DLPack's may come then.
Buffer::~Buffer() {
  if (!data || is_borrowed) return;
  if (place.cuda)
    cuda::deallocate_array(data, bytes, place.index, exported);
  else
    cpu::pool_free(data, bytes);
}

bool is_own(py::handle object) { return py::isinstance<DeviceArray>(object); }

Result own_empty(const View& layout) {
  std::optional<ReleaseGil>
      unlocked;  // allocating can wait for the device, whose work may include a callback into Python
  if (layout.place.cuda) unlocked.emplace();
  DeviceArray a = empty(layout);
  unlocked.reset();
  const View view = a.view;
  return {view, py::cast(std::move(a))};
}

DeviceArray to_device(py::handle x, int device) {
  Call call("to_device", py::none(), Takes::kAll);
  if (!is_numpy(x))
    throw TypeError(call.says("x must be a NumPy array, got " + py::repr(py::type::of(x)).cast<std::string>()));
  {
    const ReleaseGil unlocked;  // the first call makes a context, which takes a while
    cuda::require(device);
  }
  const Array a = arrays::borrow(call, "x", x);
  // A strided array is first made dense on the host: one large copy over the bus, not one per row.
  const py::object dense = py::module_::import("numpy").attr("ascontiguousarray")(x);
  const Array from = arrays::borrow(call, "x", dense);
  View layout = a.view;  // not the dense array's: ascontiguousarray makes a 0-d array 1-d
  layout.place = {true, device};
  layout.read_only = false;
  set_c_strides(layout);
  const ReleaseGil unlocked;
  DeviceArray to = empty(layout);
  if (to.buffer->bytes) {
    cuda::copy(to.view.data, from.view.data, to.buffer->bytes, device, 0);
    cuda::synchronize(device, 0);
  }
  return to;
}

py::object DeviceArray::numpy() const {
  const Result host = numpy_empty(view, numpy_dtype(view.dtype));
  if (buffer->bytes) {
    const ReleaseGil unlocked;
    if (view.place.cuda) {
      cuda::copy(host.view.data, view.data, buffer->bytes, view.place.index, 0);
      cuda::synchronize(view.place.index, 0);
    } else {
      std::memcpy(host.view.data, view.data, buffer->bytes);
    }
  }
  return host.object;
}

const Framework& own_framework() {
  static const auto& framework = *new Own;  // not destroyed: threads may still run at exit
  return framework;
}

}  // namespace kfusion::arrays
