"""Whole runs: from settings to what trains, the folder on disk, callbacks, measures, predictions and
exports."""
