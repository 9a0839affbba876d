// The binary interface of DLPack 1.3, declared from its specification (https://dmlc.github.io/dlpack): what a capsule
// of `__dlpack__` points to, and the table of C functions behind `type(x).__dlpack_c_exchange_api__`. Only the layout
// matters; the names of the fields are the specification's.
#pragma once
#include <cstdint>

namespace kfusion::dlpack {

inline constexpr std::uint32_t kMajor = 1, kMinor = 3;

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
enum Flags : std::uint64_t { kReadOnly = 1, kIsCopied = 2 };

struct DeviceId {
  std::int32_t device_type, device_id;
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; NULL: C order
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // capsule "dltensor"
  Tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major, minor;
};

struct ManagedTensorVersioned {  // capsule "dltensor_versioned"
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor dl_tensor;
};

struct ExchangeApi {  // capsule "dlpack_exchange_api"
  Version version;
  ExchangeApi* prev_api;
  int (*managed_tensor_allocator)(Tensor* prototype, ManagedTensorVersioned** out, void* error_ctx,
                                  void (*set_error)(void* error_ctx, const char* kind, const char* message));
  int (*managed_tensor_from_py_object_no_sync)(void* object, ManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(ManagedTensorVersioned* tensor, void** out_object);
  int (*dltensor_from_py_object_no_sync)(void* object, Tensor* out);
  int (*current_work_stream)(DeviceType type, std::int32_t id, void** out_stream);
};

}  // namespace kfusion::dlpack
