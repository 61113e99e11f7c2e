"""What a method's file imports: `from unskew.core import Part, Share, ...`."""

from torch import Tensor

from unskew.core.client import Client, Fed
from unskew.core.inputs import each_input
from unskew.core.keys import key
from unskew.core.own_model import OwnModel
from unskew.core.part import Part
from unskew.core.remembered import Remembered
from unskew.core.replies import Reply, Ups
from unskew.core.trees import Tree, Weights, under
from unskew.core.trip import Trip
from unskew.core.undecodable import Undecodable
from unskew.core.values import Batch, Keys, Noise, Normal, Out, Share, noisy
from unskew.models.surgery import with_head, with_projection

__all__ = [
    "Batch",
    "Client",
    "Fed",
    "Keys",
    "Noise",
    "Normal",
    "Out",
    "OwnModel",
    "Part",
    "Remembered",
    "Reply",
    "Share",
    "Tensor",
    "Tree",
    "Trip",
    "Undecodable",
    "Ups",
    "Weights",
    "each_input",
    "key",
    "noisy",
    "under",
    "with_head",
    "with_projection",
]
