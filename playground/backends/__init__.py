"""Who gives rounds: the engine in this process or, later, a server."""
