# Defines kfusion_cpu. The row kernels are compiled once per instruction-set level, each level in a namespace of its own
# and without inline functions that the linker could share between levels; the rest chooses among them at run time.
file(GLOB_RECURSE cpu_sources CONFIGURE_DEPENDS cpp/cpu/*.cpp)
list(FILTER cpu_sources EXCLUDE REGEX "kernels[.]cpp$")
add_library(kfusion_cpu STATIC ${cpu_sources})
target_link_libraries(kfusion_cpu PUBLIC kfusion_options kfusion_cache ${CMAKE_DL_LIBS})
kfusion_unity(kfusion_cpu cpp/cpu cpp/cpu/codegen cpp/cpu/fused cpp/cpu/products)
# Not beside the vectors' own sin and exp, and a class of a header with members of this file's.
set_source_files_properties(cpp/cpu/codegen/libm_table.cpp cpp/cpu/codegen/generated.cpp
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

set(levels baseline)
set(flags_baseline)
set(optimised -O3)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT APPLE)  # a build for macOS may target another processor
  if(KFUSION_SANITIZE)  # one level: optimising what the sanitizers add takes minutes, and masked accesses they do not see
    set(flags_baseline -march=x86-64-v3)
    target_compile_definitions(kfusion_cpu PRIVATE KFUSION_BASELINE_IS_AVX2)  # and is called so
    set(optimised -O1)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # checks as calls, not inline: half the code, and compiled in half the time
      list(APPEND optimised --param=asan-instrumentation-with-call-threshold=0)
    endif()
  else()
    list(APPEND levels avx2 avx512)
    target_compile_definitions(kfusion_cpu PRIVATE KFUSION_X86_LEVELS)
    set(flags_baseline -O2)  # what few machines run is worth no long build
    set(flags_avx2 -march=x86-64-v3)
    set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  endif()
endif()

file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS cpp/cpu/*kernels.cpp)
if(KFUSION_SANITIZE)  # AddressSanitizer sees most of what these would, which take half of the compile time
  set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS
                                                           -fno-sanitize=null,object-size,pointer-overflow,vptr)
endif()
foreach(level IN LISTS levels)
  add_library(kfusion_cpu_${level} OBJECT ${kernel_sources})
  target_link_libraries(kfusion_cpu_${level} PRIVATE kfusion_options)
  target_compile_definitions(kfusion_cpu_${level} PRIVATE KF_ISA=${level})
  # Integers wrap, as NumPy's do. Without the two -fno-* flags g++ does not vectorise branch-free selections and square
  # roots; neither changes a value.
  target_compile_options(kfusion_cpu_${level} PRIVATE ${optimised} -fno-trapping-math -fno-math-errno -fwrapv
                                                      ${flags_${level}})
  target_sources(kfusion_cpu PRIVATE $<TARGET_OBJECTS:kfusion_cpu_${level}>)
endforeach()
set_source_files_properties(cpp/cpu/fused/reductions.cpp PROPERTIES COMPILE_OPTIONS -fwrapv)
# What writes the ops' texts: at -O3 22 s for the first of them in the place of 8, and twice the code.
set_source_files_properties(cpp/cpu/codegen/ops.cpp cpp/cpu/codegen/divisor.cpp cpp/cpu/codegen/random_words.cpp PROPERTIES
                            COMPILE_OPTIONS -O1)
