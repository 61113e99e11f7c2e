"""Studies inside of a Flower federation that exists already: unskew's messages in Flower's own apps."""
