"""The report's pictures: each file draws one kind, from plain values to SVG text."""
