"""Secure aggregation over a network: the coordinator can compute only the sum of masked replies."""
