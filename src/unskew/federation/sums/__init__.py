"""Secure aggregation over a network: sites mask what they send, and the coordinator can compute the sum
alone."""
