"""Turns traces and results into text, log lines and Plotly figures. It imports neither Gradio nor torch.

The modules named here are the kinds of results. Each registers its `report.of`.
"""

from playground.views import comparison, doctor, load, lossless, recommend, suite, sweep, traffic
