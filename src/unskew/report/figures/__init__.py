"""The report's pictures of clients, as SVG text: who holds what, who answered, who is served how well, at what cost."""

from unskew.report.figures.attendance import attendance
from unskew.report.figures.histograms import histograms
from unskew.report.figures.partition import partition_map
from unskew.report.figures.reach import Reach, reach
from unskew.report.figures.spread import Strip, spread

__all__ = ["Reach", "Strip", "attendance", "histograms", "partition_map", "reach", "spread"]
