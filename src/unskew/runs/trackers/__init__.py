"""Callbacks that hand every score of a run on to a tracker: one file each, named as the setting `track` names
it."""
