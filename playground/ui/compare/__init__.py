"""The Compare page: one prompt through two or more lanes, with the controls, the stage and the results of a run."""
