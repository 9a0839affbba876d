#include "python/arrays/own.hpp"

#include <optional>

#include "python/arrays/numpy.hpp"
#include "python/gil.hpp"

namespace kfusion::arrays {
namespace {

DeviceArray empty(const View& layout) {
  DeviceArray a{std::make_shared<Buffer>(static_cast<std::size_t>(layout.nbytes()), layout.place), layout};
  a.view.data = a.buffer->data;
  return a;
}

/// Between a place and the host, done when this returns.
void transfer(std::byte* to, const std::byte* from, std::size_t bytes, Place place) {
  if (bytes == 0) return;
  memory_of(place).copy(to, from, bytes, place.index, 0);
  memory_of(place).synchronize(place.index, 0);
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
  if (bytes > 0) data = static_cast<std::byte*>(memory_of(place).allocate(bytes, place.index, 0));
}

// Runs on any thread, with the GIL or without, also after Python is finalised: a deleter of DLPack's may come then.
Buffer::~Buffer() {
  if (data && !is_borrowed) memory_of(place).deallocate_array(data, bytes, place.index, exported);
}

bool is_own(py::handle object) { return py::isinstance<DeviceArray>(object); }

Result own_empty(const View& layout) {
  std::optional<ReleaseGil> unlocked;  // allocating can wait for a device, whose work may call Python
  if (memory_of(layout.place).has_streams) unlocked.emplace();
  DeviceArray a = empty(layout);
  unlocked.reset();
  const View view = a.view;
  return {view, py::cast(std::move(a))};
}

DeviceArray to_device(py::handle x, int device) {
  Call call("to_device", py::none(), Takes::kAll);
  const Place to{PlaceKind::kCuda, device};
  if (!is_numpy(x))
    throw TypeError(call.says("x must be a NumPy array, got " + py::repr(py::type::of(x)).cast<std::string>()));
  {
    const ReleaseGil unlocked;  // the first call makes a context, which takes a while
    memory_of(to).require(device);
  }
  const Array a = arrays::borrow(call, "x", x);
  // A strided array is first made dense on the host: one large copy over the bus, not one per row.
  const py::object dense = py::module_::import("numpy").attr("ascontiguousarray")(x);
  const Array from = arrays::borrow(call, "x", dense);
  View layout = a.view;  // not the dense array's: ascontiguousarray makes a 0-d array 1-d
  layout.place = to;
  layout.read_only = false;
  set_c_strides(layout);
  const ReleaseGil unlocked;
  DeviceArray copy = empty(layout);
  transfer(copy.view.data, from.view.data, copy.buffer->bytes, to);
  return copy;
}

py::object DeviceArray::numpy() const {
  const Result host = numpy_empty(view, numpy_dtype(view.dtype));
  {
    const ReleaseGil unlocked;
    transfer(host.view.data, view.data, buffer->bytes, view.place);
  }
  return host.object;
}

const Framework& own_framework() {
  static const auto& framework = *new Own;  // not destroyed: threads may still run at exit
  return framework;
}

}  // namespace kfusion::arrays
