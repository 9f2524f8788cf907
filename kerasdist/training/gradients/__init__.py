"""The gradient of the global batch before all else, and random numbers of each replica."""
