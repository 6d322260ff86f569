"""Errors, in the shapes of OpenAI and of Anthropic."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every answer with a status of 400 or more, and the last event of a stream that could not be ended."""

    error: ErrorObject


class AnthropicErrorObject(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """The same under `/v1/messages`; in a stream it is the event `error`."""

    type: Literal["error"]
    error: AnthropicErrorObject
