"""All functions of arrays, by family. Importing this also makes the kinds of traced values known to the tracer."""

from . import _activations, _attention, _contractions, _losses, _norms, _primitives, _views
from . import _numpy_values as _numpy_values
from . import _torch_values as _torch_values
from ._activations import *
from ._attention import *
from ._contractions import *
from ._losses import *
from ._norms import *
from ._primitives import *
from ._views import *

_FAMILIES = (_activations, _attention, _contractions, _losses, _norms, _primitives, _views)
__all__ = [name for family in _FAMILIES for name in family.__all__]
