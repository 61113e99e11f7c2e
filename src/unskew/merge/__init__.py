"""Aggregation rules for clients' weights: the weighted mean, and robust rules, one file each."""
