"""What can be proved about what leaves a client."""
