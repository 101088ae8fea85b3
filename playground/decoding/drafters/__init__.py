"""One file per way of drafting, all of them implementing the protocol in base.py."""
