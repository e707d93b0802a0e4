"""Commands that list what is built in: models, environments, teams, learners."""

from __future__ import annotations

from marft.cli.app import app


@app.command(epilog="Example: marft models")
def models() -> None:
    """The models that are built in, and what each needs."""
    from rich.console import Console

    from marft.models.base import BUILT_IN
    from marft.run import show

    rows = [(name, each.description, each.needs) for name, each in BUILT_IN.items()]
    others = "any Llama-, Qwen- or Gemma-3-style chat model that transformers loads"
    rows.append(("(a folder or hub id)", others, "its weights"))
    Console().print(show.known_table(("model.name", "what it is", "needs"), rows))


@app.command(epilog="Example: marft environments")
def environments() -> None:
    """The environments that are built in, and what each needs."""
    from rich.console import Console

    from marft.environments import known_environments
    from marft.run import show

    rows = [(each.name, each.description, each.needs) for each in known_environments()]
    rows.append(("(module:Class)", "your own; see docs/environments.md", "a module that can be imported from here"))
    Console().print(show.known_table(("environment.name", "what it is", "needs"), rows))


@app.command(epilog="Example: marft teams")
def teams() -> None:
    """The teams that are ready made, for `team.preset` in a config."""
    from rich.console import Console

    from marft.presets import description, preset_names, preset_team
    from marft.run import show

    rows = [
        (name, ", ".join(each["name"] for each in preset_team(name)["agents"]), description(name))
        for name in preset_names()
    ]
    Console().print(show.known_table(("team.preset", "agents", "what it is"), rows))


@app.command(epilog="Example: marft learners")
def learners() -> None:
    """The learners that are ready made, for `learner` in a config or on the command line."""
    from rich.console import Console

    from marft.presets.learner import learner_description, learner_names, learner_sections
    from marft.run import show

    critics = {"shared": "one for the team", "own": "one per agent", "none": "none"}
    rows = [
        (name, learner_description(name), critics[learner_sections(name)["critic"]["kind"]]) for name in learner_names()
    ]
    Console().print(show.known_table(("learner", "what it is", "critic"), rows))
