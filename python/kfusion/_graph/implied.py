"""Names of methods that run although no code names them."""

from __future__ import annotations

import operator

# Methods that calls of modules and of torch.autograd.Function run.
OF_TORCH = ("forward", "backward", "vjp", "setup_context")
# Methods that operators, statements and built-in functions call.
IMPLICIT = {n for n in dir(operator) if n.startswith("__") and callable(getattr(operator, n)) and n != "__loader__"}
IMPLICIT |= {f"__r{n.strip('_')}__" for n in IMPLICIT} | {
    "__divmod__",
    "__rdivmod__",
    "__bool__",
    "__len__",
    "__hash__",
}
IMPLICIT |= {"__iter__", "__next__", "__reversed__", "__missing__", "__enter__", "__exit__", "__get__", "__call__"}
IMPLICIT |= {
    "__float__",
    "__int__",
    "__complex__",
    "__round__",
    "__trunc__",
    "__floor__",
    "__ceil__",
    "__length_hint__",
}
IMPLICIT |= {
    "__getattr__",
    "__getattribute__",
    "__array__",
    "__array_ufunc__",
    "__array_function__",
    "__torch_function__",
}
IMPLICIT |= {"__instancecheck__", "__subclasscheck__", "__class_getitem__", "__fspath__"}
IMPLICIT |= {"__setattr__", "__delattr__", "__set__", "__delete__", "__copy__", "__deepcopy__", "__reduce_ex__"}
TEXT = {"__str__", "__repr__", "__format__"}
# Which calls of a class run, and the end of what they make.
OF_CLASSES = {"__init__", "__new__", "__post_init__", "__call__", "__prepare__", "__init_subclass__", "__del__"}
OF_DATACLASSES = {"__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__"}  # made of all fields
