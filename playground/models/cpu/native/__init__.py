"""The CPU engine: a pass of a Llama-like model in one call of C."""
