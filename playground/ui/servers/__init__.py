"""Servers that the page starts, and servers that it watches."""
