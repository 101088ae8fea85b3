"""Suite, Sweep, Recommend, Lossless and Load: each on a tab and at an endpoint."""
