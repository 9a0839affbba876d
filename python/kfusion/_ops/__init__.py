"""The functions of arrays, each eager and traced: read operation.py first, then primitives.py."""
