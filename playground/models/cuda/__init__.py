"""Kernels for CUDA devices, written in Triton. They are imported only where such a device is used."""
