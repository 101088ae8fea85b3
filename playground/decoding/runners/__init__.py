"""Runners: a model together with the cache of one sequence. `base` has the protocols."""
