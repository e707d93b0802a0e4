"""Low-rank layers in play: no gradients, few rows, many adapters, so the number of products is what counts.

Layers that read the same tensor (q, k, v; gate, up) are one bundle with one product for the base and two for all its
adapters: the factors of all adapters and layers stand side by side, and a gate keeps every row to its own adapter's
columns. It does what the grouped products of Punica (arXiv 2310.18547) do, for the few adapters of a team.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marft.models.low_rank import Compute, LowRankLayer, Pair, Shape, Switch
from marft.types import MarftError

Product = Callable[[Tensor], Tensor]  # [n, in] -> [n, out of all layers of a bundle]


@dataclass(frozen=True)
class Bundle:
    """Layers that read the same tensor: their `places`, how wide each one's output is, and the base's part of it."""

    places: tuple[str, ...]
    widths: tuple[int, ...]
    product: Product


def find_bundles(backbone: Any, switch: Switch, shapes: Mapping[str, Shape]) -> list[Bundle]:
    """The bundles of a model, found by running it on one token and looking who reads what."""
    seen: list[tuple[LowRankLayer, Tensor]] = []

    def look(layer: LowRankLayer, inputs: Tensor) -> Tensor:
        seen.append((layer, inputs))
        output: Tensor = layer.base_layer(inputs)
        return output

    weight = next(backbone.parameters())
    nothing = torch.zeros(1, 1, 1, 1, dtype=weight.dtype, device=weight.device)
    with switch.computing(look), torch.no_grad():
        token = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
        backbone(input_ids=token, position_ids=token, attention_mask=nothing, use_cache=False)
    groups: list[list[LowRankLayer]] = []
    for number, (layer, inputs) in enumerate(seen):
        together = number > 0 and inputs is seen[number - 1][1] and _is_linear(layer) and _is_linear(groups[-1][0])
        if together:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return [_bundle(layers, shapes) for layers in groups]


def _is_linear(layer: LowRankLayer) -> bool:
    return type(layer.base_layer) is nn.Linear


def _bundle(layers: Sequence[LowRankLayer], shapes: Mapping[str, Shape]) -> Bundle:
    places = tuple(layer.place for layer in layers)
    widths = tuple(shapes[place].outputs for place in places)
    linear = [layer.base_layer for layer in layers if isinstance(layer.base_layer, nn.Linear) and _is_linear(layer)]
    if not linear:  # quantised weights, for one: only the layer itself knows how to multiply
        return Bundle(places, widths, layers[0].base_layer)
    packed = _packed(linear)
    return Bundle(places, widths, packed or _side_by_side(linear, widths))


def _packed(layers: Sequence[nn.Linear]) -> Product | None:
    """One product with a copy of the weights in the order oneDNN likes, which saves a quarter of its time on few rows.

    Only for bfloat16 on a CPU, where a small model's step is mostly that; None elsewhere.
    """
    weight = layers[0].weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    # What torch.compile itself uses, and not promised: where it is missing, the plain products serve as well
    supported, reorder, multiply = (
        getattr(torch.ops.mkldnn, name, None)
        for name in ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    )
    if supported is None or reorder is None or multiply is None or not supported():
        return None
    copy = reorder(torch.cat([layer.weight.detach() for layer in layers]).contiguous(), 32)
    bias = _bias(layers)
    return lambda inputs: multiply(inputs, copy, bias, "none", [], "")


def _bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
    return torch.cat([part.detach() for part in parts])


def _side_by_side(layers: Sequence[nn.Linear], widths: Sequence[int]) -> Product:
    """The layers' own products, written side by side."""
    pairs = [(layer.weight.T, _bias([layer])) for layer in layers]

    def multiply(inputs: Tensor) -> Tensor:
        output = inputs.new_empty(len(inputs), sum(widths))
        for (weight, bias), part in zip(pairs, torch.split(output, list(widths), dim=1), strict=True):
            if bias is None:
                torch.mm(inputs, weight, out=part)
            else:
                torch.addmm(bias, inputs, weight, out=part)
        return output

    return multiply


class Stack:
    """The pairs of several adapters as they were when this was made.

    Per bundle of m layers `down` [in, m n r] (layer by layer, in it adapter by adapter) and `up` [m n r, out] (s folded
    in, zero where a column's layer is not the row's), in the base's dtype.
    """

    def __init__(
        self, names: Sequence[str], pairs: Mapping[str, Mapping[str, Pair]], shapes: Mapping[str, Shape],
        bundles: Sequence[Bundle], dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._names = tuple(names)
        self._rank = next((shape.rank for shape in shapes.values()), 0)
        self._bundles = {place: bundle for bundle in bundles for place in bundle.places}
        self._down: dict[str, Tensor] = {}
        self._up: dict[str, Tensor] = {}
        if not names:
            return
        with torch.no_grad():
            for bundle in bundles:
                mine = [[pairs[name][place] for name in self._names] for place in bundle.places]
                down = torch.cat([each.down for layer in mine for each in layer]).T
                ups = [
                    torch.cat([each.up.T * shapes[place].scale for each in layer])
                    for place, layer in zip(bundle.places, mine, strict=True)
                ]
                self._down[bundle.places[0]] = down.to(dtype).contiguous()
                self._up[bundle.places[0]] = torch.block_diag(*ups).to(dtype)  # type: ignore[no-untyped-call]

    def compute(self, adapters: Sequence[str | None]) -> Compute:
        """How layers compute when flat row i of every input belongs to `adapters[i]` (None: to the bare base)."""
        gate = self._gate(adapters)
        count = len(adapters)
        held: tuple[Tensor, dict[str, Tensor]] | None = None

        def compute(layer: LowRankLayer, inputs: Tensor) -> Tensor:
            nonlocal held
            if layer.place not in self._bundles or inputs[..., 0].numel() != count:
                raise MarftError(
                    f"lora.targets: not every token passes {layer.place}, as in a mixture of experts; rows of several "
                    "adapters cannot be played together there, so leave such layers out"
                )
            if held is None or held[0] is not inputs or layer.place not in held[1]:
                held = inputs, self._outputs(self._bundles[layer.place], inputs, gate)
            return held[1][layer.place]

        return compute

    def _outputs(self, bundle: Bundle, inputs: Tensor, gate: Tensor | None) -> dict[str, Tensor]:
        flat = inputs.flatten(0, -2)
        output = bundle.product(flat)
        if self._names:
            low = flat @ self._down[bundle.places[0]]
            if gate is not None:
                low *= gate[:, : low.shape[1]]
            output.addmm_(low, self._up[bundle.places[0]])
        parts = torch.split(output.view(*inputs.shape[:-1], -1), list(bundle.widths), dim=-1)
        return dict(zip(bundle.places, parts, strict=True))

    def _gate(self, adapters: Sequence[str | None]) -> Tensor | None:
        """[n, m n r] for the widest bundle: 1 where a column is of the row's adapter. None: everybody has the same."""
        if not self._names or (len(self._names) == 1 and None not in adapters):
            return None
        columns: dict[str | None, int] = {name: place for place, name in enumerate(self._names)}
        chosen = torch.tensor([columns.get(name, -1) for name in adapters])
        gate = (chosen[:, None] == torch.arange(len(self._names))).repeat_interleave(self._rank, 1)
        most = max(len(bundle.places) for bundle in self._bundles.values())
        return gate.repeat(1, most).to(next(iter(self._down.values())))
