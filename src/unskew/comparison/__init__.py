"""Comparisons: their plan, a search for settings, and the training of all runs by processes of this
machine."""
