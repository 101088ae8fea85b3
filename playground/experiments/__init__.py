"""Experiments: they run lanes and return traces. Page, endpoints and terminal share them."""
