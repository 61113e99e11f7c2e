"""A site: it holds its data, checks studies against its policy, trains, and records everything that leaves
it.
"""
