"""The networks that draft from a target's hidden states, and their loaders."""
