"""All functions of arrays, and nothing else by a public name. The kinds of traced values make themselves known here."""

from ._ops.activations import *
from ._ops.attention import *
from ._ops.contractions import *
from ._ops.dropout import *
from ._ops.extremes import *
from ._ops.group_norms import *
from ._ops.joins import *
from ._ops.linear_losses import *
from ._ops.losses import *
from ._ops.norms import *
from ._ops.primitives import *
from ._ops.standard import *
from ._ops.views import *
from ._tracing import numpy_values as _numpy_values
from ._tracing import torch_values as _torch_values
