# Defines kfusion_codegen: the generator of CUDA C++, which needs no CUDA. The device headers are embedded as text, since
# NVRTC compiles them where no file of ours need be.
file(GLOB device_headers CONFIGURE_DEPENDS cuda/device/*.cuh)

set(embedded_text)
foreach(header IN LISTS device_headers)
  get_filename_component(name ${header} NAME)
  file(READ ${header} text)
  string(APPEND embedded_text "  {\"device/${name}\", R\"kf(${text})kf\"},\n")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${device_headers})
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/codegen/embedded_headers.inc)
file(WRITE ${embedded}.new "${embedded_text}")
file(COPY_FILE ${embedded}.new ${embedded} ONLY_IF_DIFFERENT)

file(GLOB codegen_sources CONFIGURE_DEPENDS cuda/codegen/*.cpp cuda/codegen/skeletons/*.cpp
     cuda/codegen/contractions/*.cpp cuda/codegen/attention/*.cpp)
add_library(kfusion_codegen STATIC ${codegen_sources})
target_include_directories(kfusion_codegen PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/codegen)
target_link_libraries(kfusion_codegen PUBLIC kfusion_options kfusion_model)
kfusion_unity(kfusion_codegen cuda/codegen cuda/codegen/attention cuda/codegen/contractions cuda/codegen/skeletons)
