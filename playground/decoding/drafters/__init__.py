"""One file per way of drafting, behind the protocol in base.py."""
