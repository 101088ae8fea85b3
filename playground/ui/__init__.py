"""The Gradio page: layout, controls and events. It never touches a tensor: it drains a run's events and shows them."""
