"""The reference of the config, from the schema that reads it: nothing in it is written twice.

`config_page()` is the Markdown; `undescribed()` are the keys of which the schema does not say what they mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from marft.config import Config
from marft.environments import known_environments
from marft.imports import import_object
from marft.presets import description, preset_names, preset_team
from marft.presets.learner import learner_description, learner_names, learner_sections

Schema = Mapping[str, Any]
WORDS = {"string": "text", "boolean": "true or false", "integer": "integer", "number": "number", "null": "null"}


@dataclass(frozen=True)
class Part:
    """One section of the schema, at the place where the page describes it: `rollout.curriculum`, `tools.NAME`."""

    path: str
    name: str  # of the section's class
    schema: Schema


def config_page() -> str:
    """Every section, key, type, default and meaning; the environments' own keys; ready-made teams and learners."""
    root = Config.model_json_schema()
    homes = _homes(root)
    lines = ["## The whole file", "", *_ready_keys(), *_table(Part("", "Config", root), root, homes)]
    for part in _parts(root, homes):
        lines += ["", *_heading(part), "", _docstring(part.schema), "", *_table(part, root, homes)]
    return "\n".join([*_anchored(lines), "", *_environments(), "", *_teams(), "", *_learners(), ""])


def undescribed() -> list[str]:
    """The keys without a description, sections aside (these have a docstring)."""
    root = Config.model_json_schema()
    homes = _homes(root)
    parts = [(Part("", "Config", root), root), *((part, root) for part in _parts(root, homes))]
    for known in known_environments():
        schema = _parameters(known.path)
        parts.append((Part(f"environment ({known.name})", known.name, schema), schema))
    return [
        f"{part.path}.{key}".lstrip(".")
        for part, whole in parts
        for key, schema in part.schema["properties"].items()
        if not _meaning(schema, whole) and "const" not in schema
    ]


def _anchored(lines: list[str]) -> Iterator[str]:
    """The rows of keys with anchors of the keys' names, where no section or earlier row has that name already."""
    taken = {found[1] for line in lines if (found := re.search(r"\{ #(\S+) \}$", line))}
    for line in lines:
        row = re.match(r"\| `([\w.]+)` ", line)
        if row and row[1] not in taken:
            taken.add(row[1])
            line = f"| `{row[1]}`{{ #{row[1]} }} {line[row.end() :]}"
        yield line


def _homes(root: Schema) -> dict[str, str]:
    """Section -> the shortest path that leads to it, where it is described; other places refer to it."""
    homes: dict[str, str] = {}
    waiting = [("", root)]
    for path, schema in waiting:  # grows while it is read: breadth first
        for key, each in schema["properties"].items():
            for name, place in _sections(each, f"{path}.{key}".lstrip(".")):
                if name not in homes:
                    homes[name] = place
                    waiting.append((place, root["$defs"][name]))
    return homes


def _parts(root: Schema, homes: Mapping[str, str], path: str = "", schema: Schema | None = None) -> Iterator[Part]:
    """Depth first, each section where its home is."""
    for key, each in (schema or root)["properties"].items():
        for name, place in _sections(each, f"{path}.{key}".lstrip(".")):
            if homes[name] == place:
                yield Part(place, name, root["$defs"][name])
                yield from _parts(root, homes, place, root["$defs"][name])


def _sections(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """The sections that a key can hold, and the path of each: entries of lists and mappings stand under NAME."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2], path
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _sections(each, path)
    for inner in (schema.get("items"), _values(schema)):
        if isinstance(inner, dict):
            yield from _sections(inner, f"{path}.NAME")


def _values(schema: Schema) -> Any:
    """What a mapping of names holds: under `patternProperties` where the names must have a form."""
    return next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))


def _heading(part: Part) -> list[str]:
    """Two sections at one path (kinds of tools, forms of D) are told apart by the key that only one of them has."""
    kind = part.schema["properties"].get("kind", {}).get("const")
    required = [] if kind else part.schema.get("required", [])[:1]
    forms = part.path in ("team.dependency", "tools.NAME")
    suffix = f" ({kind or (required or ['edges'])[0]})" if forms else ""
    anchor = f"{part.path}{suffix}".replace(" (", "-").rstrip(")")
    depth = "##" if "." not in part.path or part.path == "tools.NAME" else "###"  # `tools` itself is no section
    return [f"{depth} `{part.path}`{suffix} {{ #{anchor} }}"]


def _table(part: Part, root: Schema, homes: Mapping[str, str]) -> list[str]:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, schema in part.schema["properties"].items():
        path = f"{part.path}.{key}".lstrip(".")
        places = [homes[name] for name, _ in _sections(schema, path)]
        meaning = _meaning(schema, root)
        if places and places[0] not in (path, f"{path}.NAME"):
            meaning = f"{meaning} (the keys of [`{places[0]}`](#{places[0]}))".lstrip()
        default = _default(part.schema, key, schema)
        lines.append(_row(f"`{path}`", _type(schema), default, meaning or "–"))
    return lines


def _row(*cells: str) -> str:
    """The last cell is words, in which a pipe is no column; in code it is none anyway."""
    *code, words = (" ".join(cell.split()) for cell in cells)
    return f"| {' | '.join([*code, words.replace('|', '&#124;')])} |"


def _meaning(schema: Schema, root: Schema) -> str:
    """The key's own description, else the docstring of the section it holds."""
    if "description" in schema:
        return str(schema["description"])
    names = [name for name, _ in _sections(schema, "")]
    return _docstring(root["$defs"][names[0]]) if len(names) == 1 else ""


def _docstring(schema: Schema) -> str:
    return " ".join(str(schema.get("description", "")).split())


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return "section"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if members := (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return " or ".join(dict.fromkeys(_type(each) for each in members))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(_type(each) for each in schema['prefixItems'])}]"
        return f"list of: {_type(schema.get('items', {}))}"
    if schema.get("type") == "object":
        inner = _values(schema)
        return f"names with: {_type(inner)}" if isinstance(inner, dict) else "keys"
    return WORDS.get(str(schema.get("type")), "anything") + _bounds(schema)


def _bounds(schema: Schema) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    found = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    return f" {', '.join(found)}" if found else ""


def _default(section: Schema, key: str, schema: Schema) -> str:
    if key in section.get("required", ()):
        return "required"
    if "default" not in schema:  # made by a factory
        return {"array": "`[]`", "object": "`{}`"}.get(str(schema.get("type")), "–")
    if "$ref" in schema:
        return "–"  # a section: each of its keys has its own
    value = schema["default"]
    return f"`{json.dumps(value, ensure_ascii=False) if value != '' else chr(34) * 2}`"


def _ready_keys() -> list[str]:
    """What stands for other keys, and is written out before the schema sees the file."""
    return [
        "`team.preset` takes a [ready-made team](#ready-made-teams); `team.anonymous: true` takes its names and",
        "profiles away. `learner` takes a [ready-made learner](#ready-made-learners). Keys that the file gives itself",
        "go over theirs.",
        "",
    ]


def _parameters(path: str) -> Schema:
    """The keys of a built-in environment."""
    schema: Schema = import_object(path, "environment").Parameters.model_json_schema()
    return schema


def _environments() -> list[str]:
    lines = ["## Keys of each environment { #environments }", "", "They stand beside `environment.name`."]
    for known in known_environments():
        schema = _parameters(known.path)
        lines += ["", f"### {known.name} {{ #environment-{known.name} }}", ""]
        lines += [f"{known.description}. Needs: {known.needs}."]
        pairs = [each for key, inner in schema["properties"].items() for each in _sections(inner, f"environment.{key}")]
        homes = dict(pairs)
        lines += ["", *_table(Part("environment", known.name, schema), schema, homes)]
        for name, place in homes.items():
            inner = schema["$defs"][name]
            lines += ["", f"An entry of `{place.removesuffix('.NAME')}`:", ""]
            lines += _table(Part(place, name, inner), schema, homes)
    return lines


def _teams() -> list[str]:
    lines = ["## Ready-made teams", "", "| `team.preset` | agents | what it is |", "|---|---|---|"]
    for name in preset_names():
        agents = ", ".join(each["name"] for each in preset_team(name)["agents"])
        lines.append(_row(f"`{name}`", agents, description(name)))
    return lines


def _learners() -> list[str]:
    lines = ["## Ready-made learners", "", "Each stands for these keys."]
    for name in learner_names():
        written = yaml.safe_dump(learner_sections(name), sort_keys=False, default_flow_style=None, width=110).rstrip()
        lines += ["", f"### {name} {{ #learner-{name} }}", "", f"{learner_description(name)}."]
        lines += ["", f"```yaml\n{written}\n```"]
    return lines
