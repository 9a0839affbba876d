# Defines kfusion_cpu: loops that are generated, products by a BLAS, threads.
file(GLOB_RECURSE cpu_sources CONFIGURE_DEPENDS cpp/cpu/*.cpp)
add_library(kfusion_cpu STATIC ${cpu_sources})
# Kernels as the model lowers them, and their interpreter.
target_link_libraries(kfusion_cpu PUBLIC kfusion_model kfusion_cache ${CMAKE_DL_LIBS})
kfusion_unity(kfusion_cpu cpp/cpu cpp/cpu/codegen cpp/cpu/codegen/chains cpp/cpu/codegen/columns
              cpp/cpu/codegen/elements cpp/cpu/codegen/form cpp/cpu/codegen/instructions cpp/cpu/codegen/math
              cpp/cpu/codegen/rows cpp/cpu/loops cpp/cpu/machine_code cpp/cpu/products)
# Not beside the vectors' own sin and exp, and a class of a header with members of this file's.
set_source_files_properties(cpp/cpu/machine_code/libm_table.cpp cpp/cpu/codegen/generated.cpp
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# What writes the ops' texts: at more than -O1 22 s for the first of them in the place of 8, and twice the code.
set_source_files_properties(cpp/cpu/codegen/math/ops.cpp cpp/cpu/codegen/math/divisor.cpp
                            cpp/cpu/codegen/math/random_words.cpp PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O1>")
