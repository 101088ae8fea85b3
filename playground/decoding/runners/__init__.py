"""Runners: a model together with the cache of one sequence. `base` is the protocol, `eager` runs plain PyTorch."""
