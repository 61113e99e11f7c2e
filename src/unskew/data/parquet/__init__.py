"""Parquet files of any size: what they hold, and their rows, row group by row group."""
