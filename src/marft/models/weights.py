"""What an adapter is: LoRA tensors on top of the frozen base model, or a whole set of weights in the base's place.

Only what differs between the two lives here; a `Policy` scores and decodes through either.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter

from marft.config import LoraConfig
from marft.models.base import Base, quiet
from marft.types import MarftError

Backbone = Callable[..., Any]  # what transformers' decoder takes -> its output, with `last_hidden_state`
Head = Callable[[Tensor], Tensor]  # states [..., H] -> logits [..., V]

LORA_FILE = "adapter_model.safetensors"
FULL_FILE = "model.safetensors"


class Weights(Protocol):
    """The weights of all adapters of one base model. The name None stands for the base as it was loaded."""

    base: Base  # what runs: of the base that was given, or a module tree of its own over the same frozen tensors

    @property
    def mixes(self) -> bool:
        """Whether rows of different adapters can share a forward pass."""
        ...

    def parameters(self, name: str) -> dict[str, Parameter]:
        """An adapter's own tensors, always float32: never another's, and the same objects for as long as this lives."""
        ...

    def acting_as(self, name: str | None) -> AbstractContextManager[Backbone]:
        """The decoder as `name` computes it. A backward pass may follow later, after others have acted."""
        ...

    def mixed(self, names: Sequence[str | None]) -> AbstractContextManager[Backbone]:
        """The decoder with row i of a batch as `names[i]` computes it, without gradients; only where `mixes`."""
        ...

    def head(self, name: str | None) -> Head:
        """The vocabulary projection of `name`, bound to its tensors: it may be called at any time."""
        ...

    def save(self, name: str, folder: Path) -> None:
        """Write one adapter as a folder that plain peft (LoRA) or plain transformers (full) loads."""
        ...

    def load(self, name: str, folder: Path) -> None:
        """Overwrite an adapter with what `save` wrote. Raises `MarftError` when it is missing, damaged or unfitting."""
        ...

    def merged(self, name: str) -> Any:
        """The base as `name` makes it: a plain transformers model with memory of its own."""
        ...


class LoraAdapters:
    """LoRA adapters by name on one frozen base, kept and routed by peft.

    peft rewrites the module tree it is given. It gets one of its own over the same frozen tensors, so that other
    policies on this base, and the base itself, stay as they are.
    """

    mixes = True

    def __init__(self, base: Base, lora: LoraConfig, names: Sequence[str], seed: int = 0) -> None:
        with quiet():
            from peft import LoraConfig as PeftConfig
            from peft import get_peft_model
            from peft.tuners.tuners_utils import BaseTunerLayer

        self._plain = base.model
        self.base = replace(base, model=_tree_over(base.model))
        self.peft: Any = None  # stays None where nobody has an adapter
        settings = PeftConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.targets, task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            for name in names:
                torch.manual_seed(_seed_of(seed, name))
                try:
                    if self.peft is None:
                        self.peft = get_peft_model(self.base.model, settings, adapter_name=name)
                    else:
                        self.peft.add_adapter(name, settings)
                except KeyError:  # torch keeps adapters by name beside its own methods, such as `train` or `type`
                    raise MarftError(f"team.agents: no adapter can be called '{name}'; choose another name") from None
                except ValueError as error:
                    raise MarftError(f"lora.targets: {lora.targets} do not fit {base.name}: {error}") from None
        if isinstance(self.base.head, BaseTunerLayer):
            raise MarftError(
                f"lora.targets: {lora.targets} reach the vocabulary projection of {base.name}, which all adapters "
                "share; leave it out, or use model.tuning: full"
            )
        if self.peft is not None:
            self.peft.eval()
        self._parameters = {name: _lora_parameters(self.peft, name) for name in names}
        for parameters in self._parameters.values():
            for parameter in parameters.values():
                parameter.data = parameter.data.float()

    def parameters(self, name: str) -> dict[str, Parameter]:
        """The tensors A and B of one adapter."""
        return self._parameters[name]

    @contextmanager
    def acting_as(self, name: str | None) -> Iterator[Backbone]:
        """Route the decoder through one adapter, or through none."""
        if name is None:
            try:
                with self.peft.disable_adapter() if self.peft else nullcontext():
                    yield self.base.backbone
            finally:
                self._thaw()
        else:
            self.peft.set_adapter(name)
            self._thaw()
            yield self.base.backbone

    @contextmanager
    def mixed(self, names: Sequence[str | None]) -> Iterator[Backbone]:
        """Route every row of a batch through its own adapter."""
        routes = ["__base__" if name is None else name for name in names]
        failure: BaseException | None = None
        with self.peft.base_model._enable_peft_forward_hooks(adapter_names=routes):
            try:
                yield self.base.backbone
            except BaseException as error:
                failure = error  # peft takes its hooks off only when nothing is raised inside
        if failure is not None:
            raise failure

    def head(self, name: str | None) -> Head:
        """The base's own projection: no adapter reaches it."""
        head: Head = self.base.head
        return head

    def save(self, name: str, folder: Path) -> None:
        """Write peft's own two files; nothing else of the base model."""
        with _writing(folder):
            self.peft.peft_config[name].save_pretrained(folder)
            save_file({key: each.detach() for key, each in self.parameters(name).items()}, folder / LORA_FILE)

    def load(self, name: str, folder: Path) -> None:
        """Read the tensors that `save` or peft wrote."""
        _overwrite(name, self.parameters(name), folder / LORA_FILE)

    @torch.no_grad()
    def merged(self, name: str) -> Any:
        """W + B A * alpha / r in every layer. Raises `MarftError` on a quantised base: rounding would eat the sum."""
        from peft.tuners.lora import LoraLayer

        if self.base.quantised:
            raise MarftError(
                f"model.quantise: an adapter cannot be merged into the rounded weights of {self.base.name}; "
                "export the adapter itself, or load the model with quantise: none"
            )
        model = copy.deepcopy(self._plain)
        model.set_attn_implementation("eager")
        for place, layer in self.peft.base_model.model.named_modules():
            if isinstance(layer, LoraLayer):
                weight = model.get_submodule(place).weight
                weight.add_(layer.get_delta_weight(name).to(weight.dtype))
        return model

    def _thaw(self) -> None:
        """Undo what peft does at every switch: a graph that holds a frozen adapter loses its gradient in silence."""
        for parameters in self._parameters.values():
            for parameter in parameters.values():
                parameter.requires_grad_(True)


class FullWeights:
    """Under every name a whole float32 set of the base's parameters, which starts as a copy of them.

    A set takes the base's place for the length of a call (`torch.func.functional_call`), never in the module itself:
    the base cannot change, and a graph keeps the very tensors it was made with. Tensors that the base uses twice, as
    input embedding and as head, are one tensor of the set.
    """

    mixes = False

    def __init__(self, base: Base, names: Sequence[str]) -> None:
        if base.quantised:
            raise MarftError(f"model.quantise: the rounded weights of {base.name} cannot be trained; use tuning: lora")
        own = dict(base.model.named_parameters())
        odd = next((each.dtype for each in own.values() if each.dtype != torch.float32), None)
        if odd is not None:
            raise MarftError(
                f"model.dtype: {base.name} is loaded as {str(odd).removeprefix('torch.')}, and tuning: full needs "
                "float32 weights (small steps are lost in others); set dtype: float32"
            )
        self.base = base
        self._sets = {name: {key: Parameter(each.detach().clone()) for key, each in own.items()} for name in names}
        self._in_backbone = _names_within(base.model, base.backbone)
        self._in_head = _names_within(base.model, base.head)

    def parameters(self, name: str) -> dict[str, Parameter]:
        """Every parameter of the model, by transformers' name."""
        return self._sets[name]

    @contextmanager
    def acting_as(self, name: str | None) -> Iterator[Backbone]:
        """The decoder on one set, or on the base's own tensors."""
        if name is None:
            yield self.base.backbone
            return
        backbone, chosen = self.base.backbone, self._chosen(name, self._in_backbone)
        yield lambda **inputs: functional_call(backbone, chosen, kwargs=inputs)

    def mixed(self, names: Sequence[str | None]) -> AbstractContextManager[Backbone]:
        """Not possible: every adapter has weights of its own in every layer."""
        raise NotImplementedError("rows of different full adapters take a forward pass each")

    def head(self, name: str | None) -> Head:
        """The projection of one set, or of the base."""
        head = self.base.head
        if name is None:
            return lambda states: head(states)
        chosen = self._chosen(name, self._in_head)
        return lambda states: functional_call(head, chosen, (states,))

    def save(self, name: str, folder: Path) -> None:
        """Write what transformers' `from_pretrained` loads: config and weights, without the tokenizer."""
        with _writing(folder), quiet():
            state = {key: each.detach() for key, each in self.parameters(name).items()}
            self.base.model.save_pretrained(folder, state_dict=state)

    def load(self, name: str, folder: Path) -> None:
        """Read the weights that `save` wrote."""
        _overwrite(name, self.parameters(name), folder / FULL_FILE)

    @torch.no_grad()
    def merged(self, name: str) -> Any:
        """A copy of the model that holds the set."""
        model = copy.deepcopy(self.base.model)
        model.set_attn_implementation("eager")
        for key, each in model.named_parameters():
            each.copy_(self._sets[name][key])
        return model

    def _chosen(self, name: str, places: Mapping[str, str]) -> dict[str, Tensor]:
        return {place: self._sets[name][key] for place, key in places.items()}


def overwrite(name: str, own: Mapping[str, Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into an adapter's own, in place. Raises `MarftError` when names or shapes do not fit."""
    if set(own) != set(tensors) or any(own[key].shape != tensors[key].shape for key in own):
        raise MarftError(
            f"adapter '{name}': its tensors do not fit this model and its tuning (another base model, or lora section?)"
        )
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(tensors[key])


def _overwrite(name: str, own: Mapping[str, Parameter], file: Path) -> None:
    if not file.is_file():
        raise MarftError(f"{file.parent}: holds no {file.name} of adapter '{name}'; was the config changed?")
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{file}: cannot be loaded: {error}") from None
    try:
        overwrite(name, own, tensors)
    except MarftError as error:
        raise MarftError(f"{file}: {error}") from None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{folder}: cannot be written: {error}") from None


def _tree_over(model: Any) -> Any:
    """A module tree of its own whose parameters and buffers are the very tensors of `model`."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(each): each for each in shared})


def _names_within(model: Any, part: Any) -> dict[str, str]:
    """For every parameter name inside `part` of a model, the name the model has for that tensor."""
    names = {id(each): name for name, each in model.named_parameters()}
    return {place: names[id(each)] for place, each in part.named_parameters(remove_duplicate=False)}


def _lora_parameters(peft: Any, adapter: str) -> dict[str, Parameter]:
    # The name right after lora_A or lora_B and no other: agents may be called "0" or "mlp", as parts of a model are
    mine = re.compile(rf"(\.lora_\w+)\.{re.escape(adapter)}(?=\.|$)")
    return {mine.sub(r"\1", name): each for name, each in peft.named_parameters() if mine.search(name)}


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
