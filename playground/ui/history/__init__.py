"""What was run and is kept, for whoever looks."""
