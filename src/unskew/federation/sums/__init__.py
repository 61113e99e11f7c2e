"""Secure aggregation over a network: sites mask their replies, and the coordinator can compute only their
sum.
"""
