"""What makes a pass fast on a CPU: attention kernels, weight layout, packed weights."""
