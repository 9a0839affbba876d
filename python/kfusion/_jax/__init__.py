"""Fused functions inside JAX's transformations: as custom calls that XLA runs without Python.

Imported where JAX is, and only when it is needed.
"""

import jax as _jax

if _jax.__version_info__ < (0, 8):
    raise ImportError(
        f"kfusion: inside of jax.jit and with functions of jax.numpy it needs JAX 0.8, got {_jax.__version__}"
    )
