"""What users bring, understood or refused in one sentence: one file for each kind of data and each question asked of it."""
