"""Both versions of an operation and other libraries', checked and measured: read compare.py first."""
