"""FedAvg (McMahan et al., AISTATS 2017): w_{t+1} = sum_k n_k / n w_k over the clients that answered.

The same for running statistics of batch normalisation. With nobody there the model stays as it is.
"""

from dataclasses import replace

from tests.oracles.agreement import agree, everywhere
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case


@everywhere
def test_fedavg(case: Case) -> None:
    agree(case, FedAvg)


def test_a_round_in_which_nobody_answers() -> None:
    agree(replace(Case(), attendance=((1, 3), (), (0, 3))), FedAvg)


def test_adam_as_the_local_optimiser() -> None:
    agree(replace(Case("cnn"), optimiser="adam", lr=0.01), FedAvg)
