# Writes the names of ops.def's rows. The file changes only with a name, so that another row's expression, doc or FLOPs
# compile few files anew.
set(op_table ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kfusion/ops/ops.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${op_table})
file(READ ${op_table} rows)
string(REGEX MATCHALL "\nKF_[A-Z]+\\([a-z0-9_]+" names "${rows}")
list(TRANSFORM names REPLACE ".*\\(" "")
list(JOIN names ",\n" names)
set(op_names ${CMAKE_CURRENT_BINARY_DIR}/ops/op_names.inc)
file(WRITE ${op_names}.new "${names}\n")
file(COPY_FILE ${op_names}.new ${op_names} ONLY_IF_DIFFERENT)
target_include_directories(kfusion_options INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/ops)
