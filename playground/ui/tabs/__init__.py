"""The tabs beside Compare, each with its own address. What runs there runs on when the tab is closed."""
