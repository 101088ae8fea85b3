"""The Gradio page: layout, controls and events. It knows no tensors: it drains a run and shows what comes."""
