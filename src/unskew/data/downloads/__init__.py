"""The field's data sets, converted from original archives that the user has downloaded."""
