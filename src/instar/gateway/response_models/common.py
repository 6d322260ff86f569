"""Types that several models share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

Fact = dict[str, Any]
WallSeconds = Annotated[float, Field(description="Seconds since 1970-01-01 UTC")]
