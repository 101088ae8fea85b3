"""Experiments run lanes and return traces; page and terminal share them."""
