"""Decentralised execution: one agent as a folder that plain peft and transformers load, without `marft`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marft.config import LoraConfig, ModelConfig
from marft.game.dependency import Static
from marft.game.flexmg import Agent, FlexMG, build_game
from marft.game.organisation import Debate, Orchestrated
from marft.models.base import BUILT_IN, Base, load_base, quiet
from marft.models.policy import Policy
from marft.models.weights import LORA_FILE
from marft.run import checkpoint
from marft.run.card import Subject, about_limits, about_results, about_serving, about_team, about_training, front_matter
from marft.run.directory import RunDirectory, fsync, write_text
from marft.types import MarftError


def export_agent(
    run: RunDirectory, name: str, at: str | Path | None = None, merge: bool = False, which: str = "latest"
) -> Path:
    """Write agent `name` of checkpoint `which` to the folder `at`, which must be new or empty; returns the folder.

    An adapter in peft's format, or with `merge` (and always where the model was tuned as a whole) a full model with
    what was learnt in it; either with tokenizer and a README that says how to load it. A base model that no one else
    could load is written beside the adapter. Weights are float32, so that the exported agent computes what training on
    the CPU computed. Default for `at`: `<run>/exports/<agent>-<checkpoint>`. Raises `MarftError` when agent, checkpoint
    or folder are not as they should.
    """
    config = run.config()
    game = build_game(config, str(run.config_file))
    agent = game.agent(name)
    given = next(each for each in config.team.agents if each.name == name)
    if given.endpoint is not None:
        raise MarftError(f"agent '{name}' is the endpoint {given.endpoint.url}; it has no weights here to export")
    model = config.model_of(given)
    merge = merge or model.tuning == "full"  # then there is no adapter, only a model
    source = checkpoint.named(run, which)
    checkpoint.verify(source)
    target = Path(at or run.path / "exports" / f"{name}-{source.name}{'-merged' if merge else ''}")
    _check_free(target)
    base = load_base(model.model_copy(update={"dtype": "float32"}), "cpu")
    with _appearing(target) as folder, quiet():
        base.chat.tokenizer.save_pretrained(folder)
        if merge:
            _write_merged(base, model, config.lora, agent, source, folder)
        else:
            _write_adapter(base, model, agent, source, folder, target)
        subject = Subject(run, config, game, int(source.name), merge)
        write_text(folder / "README.md", _readme(subject, agent, base, (folder / "base").is_dir()))
    return target


def _write_merged(base: Base, model: ModelConfig, lora: LoraConfig, agent: Agent, source: Path, folder: Path) -> None:
    policy = Policy(base, lora, [agent.adapter], tuning=model.tuning)
    policy.weights.load(agent.adapter, source / "adapters" / agent.adapter)
    merged = policy.weights.merged(agent.adapter)
    merged.generation_config = _generation(base, agent)
    merged.save_pretrained(folder)


def _write_adapter(base: Base, model: ModelConfig, agent: Agent, source: Path, folder: Path, target: Path) -> None:
    """The checkpoint's own adapter files, pointed at a base model that can be loaded from anywhere."""
    saved = source / "adapters" / agent.adapter
    shutil.copyfile(saved / LORA_FILE, folder / LORA_FILE)
    settings = json.loads((saved / "adapter_config.json").read_text(encoding="utf8"))
    if model.name in BUILT_IN:
        base.model.generation_config = _generation(base, agent)
        base.model.save_pretrained(folder / "base")
        base.chat.tokenizer.save_pretrained(folder / "base")
        place = str(target.resolve() / "base")  # peft resolves a relative path against the current folder
    else:
        local = Path(model.name).expanduser()
        place = str(local.resolve()) if local.is_dir() else model.name
    settings |= {"base_model_name_or_path": place, "inference_mode": True}
    if isinstance(settings["target_modules"], list):  # peft keeps a set, whose order differs from process to process
        settings["target_modules"] = sorted(settings["target_modules"])
    write_text(folder / "adapter_config.json", json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _generation(base: Base, agent: Agent) -> Any:
    """transformers' generation defaults that draw as the agent did in training."""
    from transformers import GenerationConfig

    return GenerationConfig(
        **_sampling(agent), eos_token_id=list(base.chat.stop_ids), pad_token_id=base.chat.tokenizer.pad_token_id
    )


def _sampling(agent: Agent) -> dict[str, Any]:
    sampling = agent.sampling
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,  # transformers' word for off; some versions' default is 50
        "top_p": sampling.top_p or 1.0,
        "max_new_tokens": sampling.max_tokens,
    }


def _readme(subject: Subject, agent: Agent, base: Base, has_base: bool) -> str:
    merge = subject.merged
    origin = f"checkpoint {subject.iteration:06d} of the run `{subject.name}`"
    serving = about_serving("./base" if has_base else base.name, {agent.name: "."}, subject.config.lora.r)
    return f"""{front_matter(subject, (agent.name,))}

# {agent.name}

One agent of a team trained with marft: {origin}, on the model {base.name}. {_contents(merge, has_base)}

## Load it

```python
{_loading(merge, has_base)}
tokenizer = AutoTokenizer.from_pretrained(folder)

messages = {_messages(agent, base)}
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
reply = model.generate(**inputs, {", ".join(f"{key}={value}" for key, value in _sampling(agent).items())})
print(tokenizer.decode(reply[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

The settings of `generate` are those of training; `do_sample=False` gives the most probable reply instead.

{about_serving(".", {}, 0) if merge else serving}

## What it reads

{_reading(subject.game, agent)}

## Profile

{_quote(agent.profile) if agent.profile else "None: the agent was trained without a system prompt."}

{about_team(subject)}

{about_training(subject)}

{about_results(subject)}

{about_limits(subject)}
"""


def _contents(merge: bool, has_base: bool) -> str:
    if merge:
        return "What was learnt is in the weights, which are float32; `dtype=torch.bfloat16` halves them on loading."
    if has_base:
        return (
            "A LoRA adapter in peft's format; the base model stands in `base/`, because it is on no hub in just "
            "this form. `adapter_config.json` names that folder by its full path, which is what "
            "`AutoPeftModelForCausalLM.from_pretrained` follows; after moving this folder load it as below, or correct "
            "the path."
        )
    return "A LoRA adapter in peft's format; `adapter_config.json` names the base model it belongs to."


def _loading(merge: bool, has_base: bool) -> str:
    if merge:
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'folder = "."  # this folder\nmodel = AutoModelForCausalLM.from_pretrained(folder)'
        )
    if has_base:
        return (
            "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'folder = "."  # this folder\nbase = AutoModelForCausalLM.from_pretrained(f"{folder}/base")\n'
            "model = PeftModel.from_pretrained(base, folder)"
        )
    return (
        "import torch\nfrom peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n"
        'folder = "."  # this folder\n'
        "model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)"
    )


def _messages(agent: Agent, base: Base) -> str:
    """As the agent was spoken to: a template without a system role has the profile in the user message."""
    folded = bool(agent.profile) and not base.chat.template.has_system_role
    profile = json.dumps(agent.profile, ensure_ascii=False)
    system = f'\n    {{"role": "system", "content": {profile}}},' if agent.profile and not folded else ""
    user = f'{profile} "\\n\\n…"' if folded else '"…"'
    return f'[{system}\n    {{"role": "user", "content": {user}}},\n]'


def _reading(game: FlexMG, agent: Agent) -> str:
    task = "the task" if agent.sees_task else "no task"
    form = game.message.replace("{name}", "NAME").replace("{text}", "MESSAGE").replace("\n", "\\n")
    tools = (
        f" It may call the tools {', '.join(agent.tools)}; they are described to it as `marft` does, in the system "
        "message or by the chat template."
        if agent.tools
        else ""
    )
    return (
        f"The user message holds {task}, then what the environment tells it, then one paragraph `{form}` for each "
        f"message it reads, parts apart by an empty line. It reads: {_heard(game, agent.name)}.{tools}"
    )


def _heard(game: FlexMG, name: str) -> str:
    """Whose words the agent was trained to read."""
    d = game.dependency
    if game.workflow is not None:
        return "what the team's workflow hands it"
    if isinstance(d, Debate):
        return "the last round of all debaters" if name == d.judge else "the other debaters' last words"
    if isinstance(d, Orchestrated):
        return "whom it called" if name == d.orchestrator else f"its call by {d.orchestrator}, and what was said since"
    if not isinstance(d, Static):
        return "others as the team's dependency function decided"
    parents = ", ".join(d.graph.parents(name, game.names)) or "no other agent"
    recalled = d.graph.recalled(name, game.names)
    return parents + (f", and of the turn before: {', '.join(recalled)}" if recalled else "")


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _check_free(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise MarftError(f"{target}: the folder is not empty; choose another with -o")
    if target.exists() and not target.is_dir():
        raise MarftError(f"{target}: is a file; choose a folder with -o")


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder to fill that takes `target`'s place, whole, at the end; an error leaves nothing behind."""
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            fsync(path)
        os.rename(temporary, target)  # also over an empty folder
        fsync(target.parent)
    except OSError as error:
        raise MarftError(f"{target}: cannot be written ({error.strerror or error}); choose a folder with -o") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
