"""Fused functions inside JAX's transformations: as custom calls that XLA runs without Python."""
