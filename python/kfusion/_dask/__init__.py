"""Fused functions of dask arrays: graphs of tasks on blocks. Imported where a call meets such an array."""
