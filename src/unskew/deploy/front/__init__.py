"""The only door to the server: it lets admitted sites reach Flower's fleet API, and nobody reach anything else.

Flower's SuperLink answers sites, operators and its own programs at one port, and asks operators for no password. It
listens on loopback, and this process stands before it.
"""
