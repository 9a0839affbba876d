// The part of XLA's foreign function interface that a handler needs: its structs in C, by the layout that
// xla/ffi/api/c_api.h documents (OpenXLA; API version 0.3, which jaxlib 0.10 has).
//
// Declared here, so that a build needs no jaxlib and a wheel runs with whatever jaxlib there is. The interface only
// ever gains fields at the ends of structs while its major version is 0, and each struct begins with its size: what is
// read is checked against that (`has_all_of`).
#pragma once
#include <cstddef>
#include <cstdint>

namespace kfusion::ffi {

inline constexpr int kMajor = 0, kMinor = 3;

struct Error;    // XLA's
struct Context;  // XLA's

enum ExtensionType : int { kMetadataExtension = 1 };
enum Stage : int { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };
enum AttributeType : int { kArrayAttribute = 1, kDictionaryAttribute = 2, kScalarAttribute = 3, kStringAttribute = 4 };
enum BufferType : int { kBuffer = 1 };
enum Code : int { kInvalidArgument = 3, kResourceExhausted = 8, kOutOfRange = 11, kInternal = 13 };

/// XLA's numbers of the dtypes that graphs have.
enum DataType : int { kPred = 1, kS32 = 4, kS64 = 5, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16 };

struct Extension {
  std::size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  int dtype;
  void* value;
};

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

/// The arguments or the results of a call.
struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  BufferType* types;
  Buffer** buffers;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  AttributeType* types;
  Text** names;
  void** values;
};

struct ErrorToCreate {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  Code code;
};

struct StreamToGet {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  ///< is set
};

/// XLA's functions, as far as they are called. Those between are not.
struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorToCreate*);
  void *get_message, *destroy_error, *register_handler;
  Error* (*get_stream)(StreamToGet*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments, results;
  Attributes attributes;
};

/// What a handler says of itself when it is asked by an extension of a frame. Later versions have more behind it.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

/// The type of a handler.
using Handler = Error* (*)(CallFrame*);

/// Whether a struct of XLA's has all fields of ours.
template <class T>
bool has_all_of(const T& t) {
  return t.struct_size >= sizeof(T);
}

}  // namespace kfusion::ffi
