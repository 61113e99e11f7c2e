"""Callbacks that send every score of a run to a tracker: one file each, named like the value of the setting
`track`."""
