// NumPy arrays through NumPy's own C interface; the only file that knows it is numpy.cpp.
#pragma once
#include "python/arrays/array.hpp"

namespace kfusion::arrays {

/// Called once at import.
void import_numpy();

bool is_plain_numpy_type(PyTypeObject* type);  ///< numpy.ndarray itself
bool is_numpy(py::handle object);              ///< ndarray or a subclass

/// The array without axes that a NumPy scalar stands for; anything else as it is.
py::object array_of_scalar(py::object x);

/// Our name of a numpy.dtype. Throws TypeError for one that the call does not take.
DType dtype_of_numpy(const Call& call, const char* argument, py::handle dtype);

/// numpy.dtype of `t`; bfloat16 is ml_dtypes' (imported here; ImportError where it is not installed).
py::object numpy_dtype(DType t);

/// An uninitialised array with the extents and strides of `layout` (its data and place are ignored). Large ones live in
/// recycled memory. Throws std::bad_alloc.
Result numpy_empty(const View& layout, py::handle dtype);

/// An array that looks at memory of others.
py::object numpy_view(const View& v);

}  // namespace kfusion::arrays
