"""The experiments: a page and an endpoint for each kind."""
