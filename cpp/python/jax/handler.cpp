#include "python/jax/handler.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

#include "host/cuda.hpp"
#include "kfusion/error.hpp"
#include "kfusion/room.hpp"
#include "python/jax/executables.hpp"
#include "runtime/poison.hpp"

namespace kfusion::ffi {
namespace {

namespace handler_detail {

constexpr std::size_t kFewBuffers = 8;
constexpr std::uintptr_t kVectorBytes = 16;  // to which XLA aligns arguments and results

std::atomic<int> minor_version{kMinor};

/// A frame that XLA makes to learn of the handler; its other fields are empty.
bool answers_metadata(const CallFrame& frame) {
  const Extension* e = frame.extensions;
  if (!e || e->type != kMetadataExtension) return false;
  Metadata& m = *reinterpret_cast<const MetadataExtension*>(e)->metadata;
  if (m.struct_size < offsetof(Metadata, traits) + sizeof m.traits) return true;
  m.version.major = kMajor;
  m.version.minor = minor_version;
  m.traits = 0;
  return true;
}

std::optional<DType> dtype_of(int type) {
  switch (type) {
    case kPred:
      return DType::kBool;
    case kS32:
      return DType::kInt32;
    case kS64:
      return DType::kInt64;
    case kF16:
      return DType::kFloat16;
    case kF32:
      return DType::kFloat32;
    case kF64:
      return DType::kFloat64;
    case kBF16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

const void* attribute(const Attributes& a, std::string_view name, AttributeType type) {
  for (std::int64_t i = 0; i < a.size; ++i)
    if (std::string_view(a.names[i]->data, a.names[i]->size) == name && a.types[i] == type) return a.values[i];
  throw ValueError("kfusion: a custom call must have the attribute " + std::string(name));
}

std::int64_t key_of(const Attributes& a) {
  const auto& scalar = *static_cast<const Scalar*>(attribute(a, "key", kScalarAttribute));
  if (scalar.dtype != kS64) throw ValueError("kfusion: the key of a custom call must be an int64");
  std::int64_t key;
  std::memcpy(&key, scalar.value, sizeof key);
  return key;
}

std::shared_ptr<const Call> call_of(const Attributes& a) {
  const std::int64_t key = key_of(a);
  if (auto call = find_call(key)) return call;
  const auto& text = *static_cast<const Text*>(attribute(a, "graph", kStringAttribute));
  if (auto call = load_call(key, {text.data, text.size})) return call;
  throw ValueError("kfusion: a custom call could not be made of its text");
}

void require_as_traced(const Buffer& b, const View& v, const char* what) {
  const bool same = has_all_of(b) && dtype_of(b.dtype) == v.dtype && b.rank == v.ndim &&
                    std::equal(b.extents, b.extents + b.rank, v.shape);
  if (!same) throw ValueError(std::string("kfusion: ") + what + " of a custom call is not as it was traced");
}

/// The address of a buffer with elements, nullptr where none has any. Throws where they are not as they were traced.
const void* require_as_traced(const Buffers& b, const std::vector<View>& views, const char* what) {
  if (!has_all_of(b) || b.size != std::ssize(views))
    throw ValueError(std::string("kfusion: a custom call must have ") + std::to_string(views.size()) + " " + what +
                     "s, got " + std::to_string(b.size));
  const void* some = nullptr;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (b.types[i] != kBuffer) throw ValueError(std::string("kfusion: ") + what + " must be a buffer");
    require_as_traced(*b.buffers[i], views[i], what);
    if (views[i].size() > 0) some = b.buffers[i]->data;
  }
  return some;
}

bool are_aligned(const Buffers& b) {
  return std::all_of(b.buffers, b.buffers + b.size, [](const Buffer* buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer->data) % kVectorBytes == 0;
  });
}

/// Where it runs: XLA does not say with every version, and memory knows.
Place place_of(const Call& call, const void* some) {
  if (call.place().on_host() || !some) return call.place();
  return {call.place().kind, cuda::device_of(some)};
}

Stream stream_of(const CallFrame& frame, Place place) {
  if (place.on_host()) return 0;
  StreamToGet get{sizeof get, nullptr, frame.context, nullptr};
  if (frame.api->get_stream(&get)) throw DeviceError("kfusion: XLA gave no stream");
  return reinterpret_cast<Stream>(get.stream);
}

void run(const CallFrame& frame) {
  const auto call = call_of(frame.attributes);
  const void* const in = require_as_traced(frame.arguments, call->inputs(), "argument");
  const void* const out = require_as_traced(frame.results, call->outputs(), "result");
  const Place place = place_of(*call, in ? in : out);
  if (!place.on_host() && !(are_aligned(frame.arguments) && are_aligned(frame.results)))
    throw ValueError("kfusion: the buffers of a custom call must be aligned to 16 bytes");
  const auto compiled = call->at(place);
  const Stream stream = stream_of(frame, place);
  const std::size_t inputs = call->inputs().size(), outputs = call->outputs().size();
  Room<const std::byte*, kFewBuffers> from(inputs);
  Room<std::byte*, kFewBuffers> to(outputs);
  for (std::size_t i = 0; i < inputs; ++i) from[i] = static_cast<const std::byte*>(frame.arguments.buffers[i]->data);
  for (std::size_t i = 0; i < outputs; ++i) {
    to[i] = static_cast<std::byte*>(frame.results.buffers[i]->data);
    if (poisons_memory()) poison(to[i], static_cast<std::size_t>(call->outputs()[i].nbytes()), place, stream);
  }
  compiled->executable.run({from.data(), to.data(), nullptr, stream, nullptr});
}

Error* error(const Api& api, const char* message, Code code) {
  ErrorToCreate create{sizeof create, nullptr, message, code};
  return api.create_error(&create);
}

}  // namespace handler_detail
}  // namespace

using namespace handler_detail;

void set_minor_version(int minor) { minor_version = minor; }

Error* run_custom_call(CallFrame* frame) {
  if (answers_metadata(*frame)) return nullptr;
  const Api& api = *frame->api;
  if (!has_all_of(*frame) || !has_all_of(api) || !has_all_of(frame->attributes))
    return error(api, "kfusion: this jaxlib is older than the interface that kfusion needs: use a newer one",
                 kInternal);
  if (frame->stage != kExecute) return nullptr;
  try {
    run(*frame);
    return nullptr;
  } catch (const IndexError& e) {
    return error(api, e.what(), kOutOfRange);
  } catch (const std::bad_alloc&) {
    return error(api, "kfusion: out of memory", kResourceExhausted);
  } catch (const std::invalid_argument& e) {
    return error(api, e.what(), kInvalidArgument);
  } catch (const std::exception& e) {
    return error(api, e.what(), kInternal);
  }
}

}  // namespace kfusion::ffi
