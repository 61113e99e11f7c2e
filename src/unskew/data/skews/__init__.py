"""One file per way of dealing a set out to clients: a frozen dataclass that subclasses
`unskew.data.clients.partition.Partition`."""
