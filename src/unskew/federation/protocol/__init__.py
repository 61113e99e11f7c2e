"""What sites and coordinator have in common: keys, messages, descriptions of data, and the studies that may
run."""
