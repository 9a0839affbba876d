"""What a function depends on beside its arguments, and what it sets beside its results."""
