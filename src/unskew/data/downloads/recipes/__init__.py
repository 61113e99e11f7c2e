"""One file for each original format; `SETS` holds the sets that come in it."""
