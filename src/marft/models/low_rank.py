"""Low-rank layers: y = W x + s B A x, with a pair (A, B) for every adapter and a choice of whose pair a pass uses.

peft decides which layers get one and how an adapter is written to disk. Its own layers take gradients through float32
copies of every activation, and rows of different adapters one by one, which on a small model costs more time than the
model itself. Here learning multiplies in the base's dtype (A and B stay float32, and so do their gradients' sums); how
rows of many adapters are played is said in `bundles`. (LoRA: arXiv 2106.09685.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from marft.types import MarftError

PEFT_PREFIX = "base_model.model."  # before the names of a model's layers in an adapter's file


class Switch:
    """How all low-rank layers of one policy compute at present: at first as the base model's own."""

    def __init__(self) -> None:
        self.compute: Compute | None = None

    @contextmanager
    def computing(self, compute: Compute | None) -> Iterator[None]:
        """Make the layers compute like this for the length of a `with`."""
        before = self.compute
        self.compute = compute
        try:
            yield
        finally:
            self.compute = before


class LowRankLayer(nn.Module):
    """A linear layer of the base model, at a place in it, and what the switch makes of it."""

    def __init__(self, place: str, base_layer: nn.Module, switch: Switch) -> None:
        super().__init__()
        self.place = place
        self.base_layer = base_layer
        self.switch = switch

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        compute = self.switch.compute
        output: Tensor = self.base_layer(inputs) if compute is None else compute(self, inputs)
        return output


Compute = Callable[[LowRankLayer, Tensor], Tensor]  # a layer, its input [..., in] -> its output [..., out]


@dataclass(frozen=True)
class Shape:
    """Of one low-rank layer: `inputs` and `outputs` of its base layer, the rank, the scale s = alpha / rank."""

    inputs: int
    outputs: int
    rank: int
    scale: float
    device: torch.device
    transposed: bool  # the base layer keeps its weight as [in, out]


@dataclass(frozen=True)
class Pair:
    """The factors of one adapter in one layer: `down` A [r, in], `up` B [out, r]."""

    down: Parameter
    up: Parameter

    @classmethod
    def fresh(cls, shape: Shape) -> Pair:
        """As peft and the paper start it: A as torch draws a linear layer, B zero, so that nothing changes."""
        down = torch.empty(shape.rank, shape.inputs)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        up = torch.zeros(shape.outputs, shape.rank)
        return cls(Parameter(down.to(shape.device)), Parameter(up.to(shape.device)))

    def delta(self, shape: Shape) -> Tensor:
        """s B A, as the base layer keeps its weight."""
        product = self.up.detach() @ self.down.detach() * shape.scale
        return product.T if shape.transposed else product


def with_one(pairs: Mapping[str, Pair], shapes: Mapping[str, Shape]) -> Compute:
    """Every row through one adapter, with gradients."""

    def compute(layer: LowRankLayer, inputs: Tensor) -> Tensor:
        output: Tensor = layer.base_layer(inputs)
        pair = pairs[layer.place]
        low = inputs.flatten(0, -2) @ pair.down.to(inputs.dtype).T
        up = pair.up.to(inputs.dtype)
        return torch.addmm(output.flatten(0, -2), low, up.T, alpha=shapes[layer.place].scale).view_as(output)

    return compute


def insert(model: Any, settings: Any, switch: Switch, name: str) -> tuple[Any, dict[str, Shape]]:
    """Put low-rank layers into a model where peft would; returns peft's settings, resolved, and each place's shape.

    Places are peft's names of the layers. Raises `MarftError` when the targets do not fit the model.
    """
    from peft import get_peft_model
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    try:
        wrapped = get_peft_model(model, settings)
    except ValueError as error:
        raise MarftError(f"lora.targets: {settings.target_modules} do not fit {name}: {error}") from None
    if isinstance(model.get_output_embeddings(), BaseTunerLayer):
        raise MarftError(
            f"lora.targets: {settings.target_modules} reach the vocabulary projection of {name}, which all adapters "
            "share; leave it out, or use model.tuning: full"
        )
    ((adapter, resolved),) = wrapped.peft_config.items()
    shapes = {}
    for place, layer in [(place, each) for place, each in wrapped.named_modules() if isinstance(each, LoraLayer)]:
        base_layer = layer.get_base_layer()
        if adapter not in layer.lora_A or not isinstance(getattr(base_layer, "weight", None), Tensor):
            kind = type(base_layer).__name__
            raise MarftError(
                f"lora.targets: {place.removeprefix(PEFT_PREFIX)} of {name} ({kind}) is not linear; name "
                "linear layers only, such as [q_proj, v_proj]"
            )
        shapes[place] = Shape(
            layer.in_features, layer.out_features, layer.r[adapter], layer.scaling[adapter], base_layer.weight.device,
            bool(getattr(layer, "fan_in_fan_out", False)),
        )  # fmt: skip
        parent, _, child = place.rpartition(".")
        setattr(wrapped.get_submodule(parent), child, LowRankLayer(place, base_layer, switch))
    return resolved, shapes
