"""All functions of arrays, and nothing else by a public name. The kinds of traced values make themselves known here."""

from . import _numpy_values as _numpy_values
from . import _torch_values as _torch_values
from ._activations import *
from ._attention import *
from ._contractions import *
from ._losses import *
from ._norms import *
from ._primitives import *
from ._views import *
