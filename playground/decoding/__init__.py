"""The engine: one decode loop over a target and a drafter. It knows torch and transformers, and no page."""
