"""Every setting of every Part has a range and a meaning, and what lies outside is refused in one sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

import unskew
from unskew.core.part import Part
from unskew.errors import UsageError
from unskew.formats import arguments
from unskew.methods import catalogue, registry

SETTINGS = [
    (name, a) for name in catalogue.entries() for a in arguments.of(type(registry.parse(name).parts[0]))
]
WRONG = [
    "bsm(mu=1)",
    "fedprox(mu=-1)",
    "fedprox(mu=1e999)",
    "fedprox(mu=-1e999)",
    "fedprox(mu=strong)",
    "fedprox(mu=True)",
    "fedprox(mu=None)",
    "fedprox(mu=[1.0])",
    "fedlc(tau=-3)",
    "fedavgm(beta=1)",
    "fedavgm(beta=-0.1)",
    "fedavgm(lr=0)",
    "feddyn(alpha=0)",
    "feddyn(alpha=-1)",
    "moon(mu=-1)",
    "moon(temperature=0)",
    "moon(width=-1)",
    "moon(width=2.5)",
    "fedbabu(finetune_epochs=-1)",
    "fedbabu(lr=-1)",
    "fedbabu(weighted=1)",
    "fedbn(weighted=maybe)",
    "fedproto(lam=-1)",
    "fedfa(p=1.5)",
    "fedfa(cuts=())",
    "fedfa(cuts=block1)",
    "fedfa(variant=other)",
    "feddecorr(beta=-1)",
    "feddecorr(form=codes)",
    "fedrs(alpha=2)",
    "fedrs(alpha=-0.1)",
    "fedntd(tau=0)",
    "fedntd(beta=-1)",
    "fedavg_ft(each=0)",
    "fedavg_ft(momentum=1)",
    "fedavg_ft(batch_size=0)",
    "fedavg_ft(lr=0)",
    "fedbr(tau=0.0)",
    "fedbr(widths=())",
    "fedbr(widths=(8, 0))",
    "fedbr(pseudo=0)",
    "ccvr(share=2)",
    "ccvr(share=0)",
    "ccvr(batch_size=0)",
    "ccvr(each=0)",
    "ccvr(mode=other)",
    "ccvr(lr=-1)",
    "fedgen(lr=-1.0)",
    "fedgen(steps=0)",
    "fedgen(decay=0)",
    "fedgen(decay=1.5)",
    "fedgen_images(stage=2)",
    "fedgen_images(scale=0)",
    "feddata(share=1.1)",
    "fedmix(lam=1)",
    "fedmix(group=0)",
    "naivemix(per_batch=True, a=-1)",
    "naivemix(group=0.5)",
    "norm(std=(1, 1, 0))",
    "norm(mean=(0.5,))",
    "norm(mean=())",
    "fedrdn(mean=half)",
    "fedrdn(variant=0)",
    "rebafl(eps=1.1)",
    "rebafl(mu=-1)",
    "rebafl(form=smooth)",
    "flea(alpha=1.5)",
    "flea(a=0)",
    "flea(lambda2=-1)",
    "flea(cut=3)",
    "feddpms(stage=1)",
    "feddpms(stage=0)",
    "feddpms(sigma=0)",
    "feddpms(top=0)",
    "feddpms(spread=-1)",
    "clip_median(factor=0)",
    "multi_krum(share=0.5)",
    "trimmed_mean(share=-0.1)",
    "fedadam(lr=0)",
    "fedadam(rule=sgd)",
    "fedadam(tau=0)",
    "fedexp(eps=-1)",
    "qffl(q=-1)",
    "afl(step=-1)",
    "feddisco(measure=l1)",
    "propfair(eps=0)",
    "propfair(baseline=0)",
    "fedcm(alpha=0)",
    "fedadmm(rho=0)",
    "fedadmm(lr=-1)",
    "fedspeed(mu=0)",
    "fedspeed(rho=-1)",
    "fedcm(alpha=1.1)",
]


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        registry.parse(text)
    return caught.value


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_argument_is_refused_in_one_sentence(text):
    error = refusal(text)
    name, setting = re.match(r"(\w+)\((\w+)=", text).groups()
    assert error.code == "E102"
    assert name in error.text.lower()
    assert setting in error.text or name == "naivemix"
    assert "\n" not in error.text
    assert len(error.text) < 200
    assert error.text[-1] in ".?"


def test_a_refusal_names_the_method_the_setting_its_range_and_the_value():
    assert (
        str(refusal("fedprox(mu=-1)"))
        == "E102 method 'fedprox': mu must be a number, at least 0, at most 1000000; got -1."
    )
    assert (
        str(refusal("fedprox(mu=1e999)"))
        == "E102 method 'fedprox': mu must be a finite number, at least 0, at most 1000000; got inf."
    )


@pytest.mark.parametrize("text", WRONG)
def test_it_is_refused_in_python_too(text):
    """The same value, given to the class."""
    if text == "bsm(mu=1)":
        return
    from unskew.formats import calls

    call = calls.parse(text, "method", "E102")
    with pytest.raises(UsageError, match=rf"E102 {catalogue.entries()[call.name].kind}: "):
        getattr(unskew, catalogue.entries()[call.name].kind)(**call.arguments)


def test_settings_are_converted_in_python_as_on_the_command_line():
    assert unskew.FedProx(mu=1) == registry.parse("fedprox(mu=1)").parts[0]
    assert str(unskew.FedProx(mu=1)) == "fedprox(mu=1.0)"
    assert unskew.FedBR(widths=[8, 4]).widths == (8, 4)


@dataclass(frozen=True)
class Pair(Part):
    """A stranger's Part that checks how its settings go together."""

    low: float = 0.0
    high: float = 1.0
    name = "pair"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError("low must not exceed high")


def test_a_strangers_part_is_checked_by_its_annotations_and_its_own_relations():
    assert Pair(low=0, high=2).high == 2.0
    with pytest.raises(UsageError, match="E102 Pair: low must be a number; got 'x'"):
        Pair(low="x")
    with pytest.raises(UsageError, match="E102 method 'pair': low must not exceed high"):
        registry.part_of(Pair, "pair", {"low": 2, "high": 1})


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=lambda v: getattr(v, "name", v))
def test_every_setting_says_what_it_means_and_every_number_has_a_range(name, setting):
    assert len(setting.meaning.split()) >= 2
    assert not setting.meaning.endswith(".")
    assert setting.range or "number" not in setting.type or (name, setting.name) == ("norm", "mean")
    assert setting.convert(setting.default) == setting.default
