"""Backends run lanes: they take a lane and a request, and return rounds."""
