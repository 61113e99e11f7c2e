"""The process that sites connect to. It lets admitted sites reach Flower's fleet API, and nothing else.

Flower's SuperLink answers sites, operators and its own programs on one port, and asks operators for no
password. It therefore listens at a unix socket, behind this process.
"""
