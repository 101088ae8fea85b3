"""Fast passes on a CPU: the number of threads, weight layout, packed weights, layers of four bits."""
