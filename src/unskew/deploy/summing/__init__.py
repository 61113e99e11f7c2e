"""Secure aggregation over a network: sites mask what they send, and the coordinator opens the sum alone."""
