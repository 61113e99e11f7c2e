"""The process that sites connect to. It lets admitted sites reach Flower's fleet API, and nothing else."""
