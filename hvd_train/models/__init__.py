"""One file a model: what it builds, its loss for each example, and how its output is read."""
