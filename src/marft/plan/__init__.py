"""The planner: memory and time of a run, from its config and the shape of its model, before anything is loaded.

`forecast` is all of it; what it adds up is counted in `shapes` (a model) and `speeches` (an episode), and priced in
`cost`. Nothing here imports torch.
"""

from marft.plan.forecast import Forecast, forecast
from marft.plan.machine import MACHINES, Assumptions, Machine, machine_of

__all__ = ["MACHINES", "Assumptions", "Forecast", "Machine", "forecast", "machine_of"]
