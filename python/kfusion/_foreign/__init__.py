"""Calls of fused functions with arrays that kernels cannot read: labelled, lazy, or in several processes."""
