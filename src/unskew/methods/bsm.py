"""BSM-FedAvg (balanced softmax: Ren et al., NeurIPS 2020, arXiv 2007.10740; in FL: Chen & Chao, ICLR 2022).

Client: CE(z + log p_k, y)    p_k: the client's label shares
        classes that the client lacks are masked out, so that a client with one class has loss 0
Test:   plain logits
Differs from the paper: nothing; the code of ReBaFL masks by log(p + 1e-9), ours exactly.
"""

from dataclasses import dataclass

from unskew.core import Batch, Client, Part, Tensor

_REASON = "it masks the classes a client lacks, which the other brings into its batches"
MIXTURES: dict[str, str] = dict.fromkeys(("flea", "fedmix", "naivemix", "feddata", "feddpms"), _REASON)
"""Parts that bring labels of other clients into a batch."""
_REPEATED_PRIOR = "both put the client's label counts into the logits"
_BY_COUNTS = ("bsm", "fedetf", "fedlc", "fedrod", "fedvls", "rebafl", "unskew")


def conflicts_of_prior(name: str) -> dict[str, str]:
    """Parts that cannot be combined with this Part, which corrects logits by the client's labels, each with
    the reason."""
    return {**MIXTURES, **dict.fromkeys((other for other in _BY_COUNTS if other != name), _REPEATED_PRIOR)}


@dataclass(frozen=True)
class BSM(Part):
    """Adds the logarithm of the client's label shares to its logits."""

    name = "bsm"
    family = "classifier"
    against = ("labels",)
    use_when = (
        "Clients lack classes and only the loss may change; `rbsm` is its relaxed form for clients with a few"
        " samples of a class."
    )
    tasks = ("classification",)
    plain_loss = True
    needs = "class counts"
    clashes = conflicts_of_prior(name)

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        return z + (c.counts / c.n).log()
