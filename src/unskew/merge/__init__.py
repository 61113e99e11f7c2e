"""How clients' weights become the next global ones: the weighted mean, and rules that stand bad clients."""

RULES = {"clip_median": "clip", "median": "median", "trimmed_mean": "trimmed", "multi_krum": "krum"}
"""Parts that replace the weighted mean: name -> file."""
