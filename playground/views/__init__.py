"""Trace in; text, log lines and Plotly figures out. Pure functions that know neither Gradio nor torch.

The modules named here are the kinds of results. Each registers its `report.of`.
"""

from playground.views import acceptance, comparison, load, lossless, recommend, suite, sweep

__all__ = ["acceptance", "comparison", "load", "lossless", "recommend", "suite", "sweep"]
