"""What the playground measures about itself."""
