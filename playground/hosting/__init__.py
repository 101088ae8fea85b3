"""Hosting of a page that strangers can reach: permissions, limits, and the filters in front of Gradio."""
