"""What a method's file imports: `from unskew.core import Part, Share, ...`."""

from torch import Tensor

from unskew.core.client import Batch, Client, Fed, Out
from unskew.core.modules import with_head, with_projection
from unskew.core.network import each_input
from unskew.core.part import OwnModel, Part, Remembered
from unskew.core.random_keys import Keys, Normal, add_noise, key
from unskew.core.replies import DecodeError, Reply, Ups
from unskew.core.shares import Noise, Share
from unskew.core.trees import Tree, Weights, under
from unskew.core.trip import Trip

__all__ = [
    "Batch",
    "Client",
    "DecodeError",
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
    "Ups",
    "Weights",
    "add_noise",
    "each_input",
    "key",
    "under",
    "with_head",
    "with_projection",
]
