"""What a run can measure beside its scores: pure functions of tensors, one file each. docs/measures.md tells of each."""

from collections.abc import Sequence

NAMES = {
    "separation": "Davies-Bouldin index of the classes in the features, training and test rows, local and global models",
    "diversity": "how far the clients' trained weights lie apart (ReBaFL, Eq. 24)",
    "correlation": "distance correlation of inputs and shared features, R and R squared (FLea, Fig. 9b)",
    "exposure": "the share of pairs of clients in which one has received something of the other's (FLea, Fig. 9a)",
    "histograms": "class shares of the shared pool, of clients' own data, and of what training sees (FLea, Fig. 7)",
    "received": "inputs that clients receive of others: how like their class, how near to a training sample, and a picture",
    "cross_site": "every client's trained model on every other client's test rows (FedRDN, Table 3)",
    "tsne": "test features of clients in the plane, under local and global models (FedRDN, Fig. 3)",
}
"""Every measure by name, and what it is; the name is also that of the file."""
NONE = "none"


def names_in(text: str) -> tuple[str, ...]:
    """`diversity, separation` -> ("diversity", "separation"), each once. Raises KeyError with the first unknown name."""
    found = tuple(dict.fromkeys(n.strip().lower().replace("-", "_") for n in text.split(",") if n.strip()))
    found = tuple(n for n in found if n != NONE)
    for name in found:
        if name not in NAMES:
            raise KeyError(name)
    return found


def written(names: Sequence[str]) -> str:
    """The text that `names_in` reads."""
    return ",".join(names) or NONE
