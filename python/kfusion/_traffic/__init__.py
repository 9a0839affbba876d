"""Predicted bytes beside those of the GPU's counters: read traffic.py first."""
