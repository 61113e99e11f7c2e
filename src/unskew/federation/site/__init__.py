"""A site: it holds its data, trains, and checks and records everything that leaves it."""
