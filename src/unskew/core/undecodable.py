"""Why the encoded weights of a reply cannot be read."""


class Undecodable(Exception):
    """Raised by `Part.decode` for what no honest client sends. Its text is the end of a sentence, without full stop."""
