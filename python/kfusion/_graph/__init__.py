"""A graph while it grows, the values that stand for its nodes, and what a call hands to C++."""
