"""Benchmarks of the playground itself."""
