"""Backends run lanes: a lane and a request go in, rounds come out."""
