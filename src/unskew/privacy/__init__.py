"""What can honestly be said of what leaves a client."""
