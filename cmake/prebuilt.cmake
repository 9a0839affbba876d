# Compiles kernels ahead of time (python/kfusion/_prebuilt.py says which): the module just built says their texts, nvcc
# compiles them, and they are installed beside the module, where it finds them by their texts.
if(NOT KFUSION_HAVE_CUDA OR KFUSION_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()

set(KFUSION_PREBUILT auto CACHE STRING
    "Kernels compiled ahead of time: common, all, OFF, or auto (docs/using.md)")
set_property(CACHE KFUSION_PREBUILT PROPERTY STRINGS auto common all OFF)
if(NOT KFUSION_PREBUILT MATCHES "^(auto|common|all|OFF)$")
  message(FATAL_ERROR "KFUSION_PREBUILT must be auto, common, all or OFF, got '${KFUSION_PREBUILT}'")
endif()
if(KFUSION_PREBUILT STREQUAL "OFF")
  return()
endif()
set(which ${KFUSION_PREBUILT})
if(which STREQUAL "auto" AND KFUSION_NO_GPU_KNOWN)  # for GPUs that this machine has not, it would be half a minute
  set(which needed)
endif()

set(architectures ${CMAKE_CUDA_ARCHITECTURES})
if(architectures STREQUAL "native")
  set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
elseif(architectures STREQUAL "all")
  set(architectures ${CMAKE_CUDA_ARCHITECTURES_ALL})
elseif(architectures STREQUAL "all-major")
  set(architectures ${CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR})
endif()

set(prebuilt ${architectures})
list(TRANSFORM prebuilt PREPEND ${CMAKE_CURRENT_BINARY_DIR}/prebuilt/)
list(TRANSFORM prebuilt APPEND .kernels)
file(GLOB package_sources CONFIGURE_DEPENDS python/kfusion/*.py python/kfusion/_*/*.py)
add_custom_command(
  OUTPUT ${prebuilt}
  COMMAND ${Python_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cmake/prebuild.py $<TARGET_FILE:_core>
          ${CMAKE_CURRENT_SOURCE_DIR}/python ${which} ${CMAKE_CUDA_COMPILER} ${CMAKE_CURRENT_BINARY_DIR}/prebuilt
          ${architectures}
  DEPENDS _core cmake/prebuild.py ${package_sources}
  COMMENT "Compiling kernels ahead of time for ${architectures}"
  USES_TERMINAL VERBATIM)
add_custom_target(kfusion_prebuilt ALL DEPENDS ${prebuilt})
install(FILES ${prebuilt} DESTINATION kfusion/prebuilt)
