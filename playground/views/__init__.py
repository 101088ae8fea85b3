"""Trace in; text, log lines and Plotly figures out. Pure functions that know neither Gradio nor torch."""
