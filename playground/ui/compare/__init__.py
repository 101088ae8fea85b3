"""One prompt through two lanes or more: controls, the stage, and what is said of a run."""
