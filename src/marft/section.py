"""What every part of a config is made of: closed, immutable sections, and the numbers they hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Unit = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the config: immutable, and closed (a misspelt key is never ignored)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
