"""Peak memory of one training iteration with 1 agent and with 4: `python -m benchmarks.memory [--model NAME]`.

One frozen base serves all agents, so more agents should cost their adapters and optimiser states and little else. Both
teams give 32 replies an iteration (32 episodes of one agent, 8 of four who act at once), so the work is the same.
Each team runs in a process of its own; peak resident memory is what the operating system reports when it ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

TARGET = 1.15


def config(agents: int, model: str) -> dict[str, Any]:
    """`agents` agents who act at once and give 32 replies of up to 32 tokens together."""
    return {
        "name": "memory",
        "iterations": 1,
        "model": {"name": model, "dtype": "float32"},
        "team": {"agents": [{"name": f"agent{number}"} for number in range(agents)], "dependency": "parallel"},
        "environment": {"name": "reasoning", "dataset": "chain_sum", "answer": "last_number", "heldout_size": 8},
        "rollout": {"tasks": 8 // agents, "samples": 4, "sampling": {"max_tokens": 32}},
        "critic": {"warmup": 0},
        "evaluation": {"tasks": 0},
        "run": {"tensorboard": False},
    }


def measure(agents: int, model: str, folder: Path) -> float:
    """Peak resident memory in MiB of one iteration, in a fresh process."""
    file = folder / f"{agents}.yaml"
    file.write_text(yaml.safe_dump(config(agents, model)), encoding="utf8")
    code = (
        "import resource\n"
        "from marft.cli import main\n"
        "try:\n"
        f"    main(['train', {str(file)!r}, '--run', {str(folder / f'run{agents}')!r}])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run with {agents} agents failed:\n{done.stderr}")
    return int(done.stdout.split("PEAK")[1]) / (1024 if sys.platform != "darwin" else 1024**2)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        peaks = {agents: measure(agents, model, Path(folder)) for agents in (1, 4)}
    print(f"| agents | peak memory, {model}, float32 |\n|---|---|")
    for agents, peak in peaks.items():
        print(f"| {agents} | {peak:.0f} MiB |")
    ratio = peaks[4] / peaks[1]
    print(f"\n4 agents / 1 agent: {ratio:.3f} (target: at most {TARGET})")


if __name__ == "__main__":
    main()
