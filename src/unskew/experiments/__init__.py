"""Every published table as a file: settings, methods, the paper's numbers, and the claims to test."""
