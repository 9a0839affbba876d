# Defines kfusion_cuda: the CUDA kernels and their host code, or stubs that throw DeviceError. Nothing else in the build
# knows which.
include(CheckLanguage)

set(KFUSION_HAVE_CUDA OFF)
if(NOT KFUSION_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "KFUSION_CUDA must be AUTO, ON or OFF, got '${KFUSION_CUDA}'")
endif()

# The GPU of this machine where there is one, else Ampere and Hopper (and, through PTX, what came after). Wheels for
# everybody set the whole list (CMakePresets.json).
function(kfusion_default_architectures)
  if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
    return()
  endif()
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_VARIABLE gpus ERROR_QUIET)
  if(no_gpu EQUAL 0 AND gpus MATCHES "GPU 0")
    set(CMAKE_CUDA_ARCHITECTURES native PARENT_SCOPE)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90 PARENT_SCOPE)
    set(KFUSION_NO_GPU_KNOWN ON PARENT_SCOPE)
  endif()
endfunction()

# `why` stops a build that requires CUDA, and turns it off in one that does not.
macro(kfusion_without_cuda why)
  set(KFUSION_HAVE_CUDA OFF)
  if(KFUSION_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KFUSION_CUDA=ON, but ${why}. Install the CUDA Toolkit (12.0 or newer), put nvcc on PATH (or set "
                        "CUDACXX to it) and delete the build folder, or build without CUDA: KFUSION_CUDA=OFF.")
  endif()
endmacro()

if(NOT KFUSION_CUDA STREQUAL "OFF")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    kfusion_default_architectures()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(CMAKE_CUDA_STANDARD 20)
    enable_language(CUDA)  # before the library, whose architectures are those known when it is made
    set(KFUSION_HAVE_CUDA ON)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      kfusion_without_cuda("nvcc ${CMAKE_CUDA_COMPILER_VERSION} has no C++20")
    endif()
  else()
    kfusion_without_cuda("no working nvcc was found")
  endif()
endif()

if(KFUSION_HAVE_CUDA)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/host/*.cpp cuda/host/*.cu)
  list(FILTER cuda_sources EXCLUDE REGEX "/no_cuda[.]cpp$")
  add_library(kfusion_cuda STATIC ${cuda_sources})
  target_link_libraries(kfusion_cuda PUBLIC CUDA::cudart_static PRIVATE kfusion_codegen kfusion_compiler)
  message(STATUS "kfusion: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
else()
  add_library(kfusion_cuda STATIC cuda/host/no_cuda.cpp)
  message(STATUS "kfusion: without CUDA (KFUSION_CUDA=${KFUSION_CUDA})")
endif()
target_link_libraries(kfusion_cuda PRIVATE kfusion_options)
