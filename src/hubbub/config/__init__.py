"""Settings: what there are, and the files and words they come from."""
