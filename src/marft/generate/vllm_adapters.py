"""The adapters as vLLM has them: files in peft's format, under names that are new whenever the tensors are."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from marft.generate.vllm_host import Host
from marft.models.policy import Policy
from marft.models.weights import LORA_FILE
from marft.types import MarftError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the LoRA ranks vLLM can make room for


@dataclass(frozen=True)
class Loaded:
    """An adapter as vLLM knows it. `name` and `number` are new whenever the tensors are: vLLM finds kept prefixes by
    them (vllm-project/vllm#42125). `seen` is the announcement at which the tensors were last looked at."""

    name: str
    number: int
    folder: Path
    digest: bytes
    seen: int


class Adapters:
    """Writes an adapter out when a request first needs it after `announce`, and only if its tensors changed."""

    def __init__(self, policy: Policy, host: Host, files: Path) -> None:
        self.loaded: dict[str | None, Loaded] = {}
        self._policy, self._host, self._files = policy, host, files
        self._numbers = itertools.count(1)
        self._announced = 0
        self._version = 0

    def announce(self, version: int) -> None:
        """The tensors may have changed; from now on they are `version`."""
        self._version = version
        self._announced += 1

    def arguments(self, at_once: int | None) -> dict[str, Any]:
        """vLLM's settings for `at_once` different adapters in a batch (None: all there are)."""
        if not self._policy.adapters:
            return {}
        rank = max(_rank(self._policy, name) for name in self._policy.adapters)
        return {
            "enable_lora": True,
            "max_lora_rank": room(rank),
            "max_loras": (at_once or len(self._policy.adapters)) + self._stands_in,
        }

    def of(self, name: str | None) -> Any:
        """vLLM's handle of an adapter with the tensors of now; None for the base."""
        if name is None and not self._stands_in:
            return None
        from vllm.lora.request import LoRARequest

        known = self.loaded.get(name)
        if known is None or known.seen != self._announced:
            digest = b"" if name is None else _digest(self._policy, name)
            if known is not None and known.digest == digest:
                known = replace(known, seen=self._announced)
            else:
                known = self._renew(name, known, digest)
            self.loaded[name] = known
        return LoRARequest(known.name, known.number, str(known.folder))

    @property
    def _stands_in(self) -> bool:
        """Whether the base is asked for as an adapter of zeros. On CPUs vLLM (0.32) gives rows without an adapter that
        of the last slot as soon as another row has one (vllm-project/vllm#48421)."""
        from vllm.platforms import current_platform

        return bool(self._policy.adapters and current_platform.is_cpu())

    def _renew(self, name: str | None, old: Loaded | None, digest: bytes) -> Loaded:
        """Write an adapter, have vLLM load it under a name it has never heard, and drop the old one."""
        from vllm.lora.request import LoRARequest

        self.loaded.pop(name, None)  # whatever goes wrong below, it is no longer what it was
        number = next(self._numbers)
        title = f"{name or 'the base'}@{self._version}-{number}"
        folder = self._files / title
        self._policy.weights.save(name or self._policy.adapters[0], folder)
        if name is None:
            _silence(folder / LORA_FILE)
        try:
            if old is not None:
                self._host.run(self._host.llm.remove_lora(old.number))
                shutil.rmtree(old.folder)
            self._host.run(self._host.llm.add_lora(LoRARequest(title, number, str(folder))))
        except Exception as error:  # whatever vLLM's process raised comes back as it is
            raise MarftError(f"rollout.engine: vLLM cannot load adapter '{title}': {error}") from error
        return Loaded(title, number, folder, digest, self._announced)


def _silence(file: Path) -> None:
    """Make a saved adapter add nothing."""
    save_file({key: each * 0 if "lora_B" in key else each for key, each in load_file(file).items()}, file)


def _rank(policy: Policy, name: str) -> int:
    """The r of an adapter."""
    return max(each.shape[0] for key, each in policy.parameters(name).items() if "lora_A" in key)


def room(rank: int) -> int:
    """The smallest rank vLLM makes room for that holds `rank`."""
    found = next((each for each in RANKS if each >= rank), None)
    if found is None:
        raise MarftError(f"lora.r: vLLM takes adapters up to rank {RANKS[-1]}, not {rank}")
    return found


def _digest(policy: Policy, name: str) -> bytes:
    """What an adapter's tensors are, in 16 bytes: equal for equal tensors."""
    found = hashlib.blake2b(digest_size=16)
    for key, each in sorted(policy.parameters(name).items()):
        found.update(key.encode())
        found.update(each.detach().cpu().contiguous().numpy().tobytes())
    return found.digest()
