"""From a plain function to the graph of what it did: read trace.py first, then _graph/tracer.py."""
