# %% [markdown]
# # Absent clients, five seeds, and what leaves a client
#
# Half of the clients are away in every round, and three methods are compared on the same absences: FedAvg, ReBaFL, which was made for
# this, and ReBaFL with FedDyn. Five seeds are enough for a paired test. Then every run is attacked, so that the report has what a
# reader of the messages could learn beside what the method earns. It runs offline.

# %%
from pathlib import Path

import unskew

away = {"data": "digits", "skew": "classes:3", "clients": 10, "samples": 50, "availability": "bernoulli:0.5"}

# %%
comparison = unskew.compare(
    ["fedavg", "rebafl", "rebafl+feddyn"],
    **away,
    rounds=10,
    epochs=2,
    seeds=5,
    references=False,
    privacy=True,
    name="absent",
)
print(comparison.table())

# %% [markdown]
# The last column holds the test against the best row, with Holm's correction for several rows. The report shows who answered when, and
# in its table of leakage what each attack found, with the interval of its score and what is left to chance. [How attacks are
# read](../privacy.md).

# %%
for one in comparison.leakages():
    if leak := one.worst:
        value = leak.value
        print(
            f"{one.method}: {leak.attack} on {leak.payload}, {leak.metric} {value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"
        )

# %%
Path("reports").mkdir(exist_ok=True)
Path("reports/what_leaves.html").write_bytes(Path(comparison.report()).read_bytes())
