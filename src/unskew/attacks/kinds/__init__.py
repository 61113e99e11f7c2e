"""The attacks, one file each: the file's name is the attack's, and its first line describes it."""
