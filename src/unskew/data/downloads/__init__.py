"""The field's data sets from their original archives, which the user has downloaded, into the one form that
is read here."""
