"""What is skewed in a federation, by numbers that its sites may share, and which method to take, by measured evidence."""
