"""A page that strangers can reach: who may do what, limits, and the ways in."""
