"""Attacks on finished runs: what a reader of payloads can learn about the clients' samples, as numbers with a
floor and a ceiling."""
