"""The version of unskew; pyproject.toml says the same, which a test checks."""

__version__ = "0.1.0"
