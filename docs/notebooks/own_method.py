# %% [markdown]
# # A method of your own in twenty lines
#
# A method is a class: a frozen dataclass that subclasses `unskew.Part` and overrides the hooks it needs. This one pulls the weights
# towards those that a client received, and less so from round to round. [The guide](../guides/method.md) has the rules of hooks.

# %%
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

import unskew


@dataclass(frozen=True)
class Fading(unskew.Part):
    """FedAvg with a pull towards the received weights that fades."""

    mu: Annotated[float, Ge(0), "strength of the pull in round 1; 0 is FedAvg"] = 0.5
    name = "fading"
    neutral = {"mu": 0.0}

    def loss(self, w, out, b, c):
        pull = sum((w[n] - c.start[n].detach()).pow(2).sum() for n in c.fed.shared)
        return self.mu / c.t / 2 * pull


# %% [markdown]
# Any Part goes into a method, alone or with others, of which nothing has to know of it. A comparison takes objects as they are; its
# runs then train here, one after another.

# %%
hard = {"data": "digits", "skew": "classes:2", "clients": 10, "samples": 50, "rounds": 6, "epochs": 2}
together = unskew.Method(Fading(mu=0.1), unskew.FedDyn())
comparison = unskew.compare(
    {"plain": "fedavg", "fading": Fading(), "with FedDyn": together}, **hard, seeds=2, name="fading"
)
print(comparison.table())

# %% [markdown]
# With its neutral setting it has to be FedAvg, bit for bit. `unskew check FILE` verifies that of a method in a file, and twelve things
# more; in a notebook the same is seen by comparing weights.

# %%
plain = unskew.run("fedavg", **hard, name="plain").model.state_dict()
neutral = unskew.run(unskew.Method(Fading(mu=0.0)), **hard, name="neutral").model.state_dict()
all((plain[name] == neutral[name]).all() for name in plain)
