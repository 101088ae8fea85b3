"""The pages and endpoints of the experiments, one of each for each kind."""
