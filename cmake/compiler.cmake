# Defines kfusion_compiler: from CUDA C++ to images through NVRTC and the cache on disk. It finds NVRTC when it runs, so
# it is always built, with CUDA and without.
file(GLOB compiler_sources CONFIGURE_DEPENDS cuda/compiler/*.cpp)
add_library(kfusion_compiler STATIC ${compiler_sources})
target_link_libraries(kfusion_compiler PUBLIC kfusion_options kfusion_cpu)
kfusion_unity(kfusion_compiler cuda/compiler)
target_compile_definitions(kfusion_compiler PRIVATE KFUSION_VERSION="${PROJECT_VERSION}")
if(KFUSION_HAVE_CUDA)  # images must suit the driver, which suits the runtime that is linked
  target_compile_definitions(kfusion_compiler PRIVATE KFUSION_CUDA_MAJOR=${CUDAToolkit_VERSION_MAJOR})
endif()
