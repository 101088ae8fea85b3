"""What only a GPU can tell: models of real shapes and random weights, so that no hub and no network is needed."""
