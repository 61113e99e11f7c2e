"""Figures for Prometheus at both ends: counts, seconds and bytes. None of them says anything of a site's data."""
