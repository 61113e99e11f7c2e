"""A site: it keeps its data, judges studies by its policy, trains, and records everything that leaves it."""
