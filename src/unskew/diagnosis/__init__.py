"""Diagnosis of a federation: its skews by numbers that sites may share, and a recommended method."""

RELEVANT_SETTINGS = (
    "skew",
    "clients",
    "samples",
    "availability",
    "model",
    "seed",
    "partition_seed",
    "secure_aggregation",
)
"""The settings of a run on which a diagnosis depends."""
