"""Speculative Decoding Playground: a prompt and a model pair go in, rounds come out."""

__version__ = "0.1.0"
