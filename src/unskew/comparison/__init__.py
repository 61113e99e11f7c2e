"""Comparisons: their plan, a search for settings, and the training of all runs on this machine or on a Ray
cluster.

One run, too, can have its clients trained on the nodes of a cluster.
"""
