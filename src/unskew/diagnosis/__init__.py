"""What is skewed in a federation, by numbers that its sites may share, and which method to take, by measured
evidence."""

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
"""The settings of a run that a diagnosis looks at; with any other one it would say the same."""
