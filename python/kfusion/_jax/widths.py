"""The 64 bits that JAX has where jax_enable_x64 is set only: else its arrays are narrow, and so is what passes between
our calls.
"""

from __future__ import annotations

import jax

from .program import Program


def narrow(dtype: str) -> str:
    """The dtype that an array of JAX has for it."""
    return str(jax.dtypes.canonicalize_dtype(dtype))


def narrowed(program: Program) -> Program:
    """The program of arrays that JAX has, which computes as wide as before."""
    inputs, outputs = (tuple(narrow(n["dtype"]) for n in its) for its in (program.inputs, program.outputs))
    if inputs != tuple(n["dtype"] for n in program.inputs):
        program = program.taking(inputs)
    return program.converted(outputs) if outputs != tuple(n["dtype"] for n in program.outputs) else program
