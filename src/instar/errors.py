"""Every error that Instar raises on purpose.

Rule for adding one: a caller must want to catch it apart from its siblings. Otherwise use the parent.

    InstarError
    ├── Overloaded           so much is being answered already that no more is taken on
    ├── UserError            the person can mend it; the text says how
    │   ├── ConfigError          a setting, a folder, a port, a lock
    │   ├── ModelError           the model folder or name cannot be used
    │   └── RequestError         an HTTP request that is refused; carries status, code and param
    ├── EngineError          the engine answered with an error or not at all
    │   └── EngineUnavailable    nobody listens, or the connection broke
    ├── ArtifactError        a version on disk is missing, damaged or not what its manifest says
    ├── StoreError           the database refused; nothing was half-written
    │   └── LeaseLost            somebody else took the work over
    ├── TrainingError        an update could not be computed
    └── JudgeUnavailable     a model that judges could not be asked; its link abstains
"""


class InstarError(Exception):
    """Root of all errors raised on purpose."""


class UserError(InstarError):
    """Something the person in front of Instar can mend; the message says how."""


class ConfigError(UserError):
    """A setting, a folder, a port or a lock is not usable."""


class ModelError(UserError):
    """The model named by the user cannot be found, read or served."""


class RequestError(UserError):
    """An HTTP request that is refused.

    Attributes follow the OpenAI error object: `status` (HTTP), `code`, `param`, `kind` (its `type`).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind


class Overloaded(InstarError):
    """So many requests are being answered that no more is taken on; the same one may come again in a moment."""


class EngineError(InstarError):
    """The engine answered with an error. `status` is its HTTP status, 0 when there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EngineUnavailable(EngineError):
    """Nobody listens at the engine's address, or the connection broke in mid-answer."""


class ArtifactError(InstarError):
    """A version on disk is missing, damaged, or not what its manifest says."""


class StoreError(InstarError):
    """The database refused an operation; nothing of it was written."""


class LeaseLost(StoreError):
    """The lease ran out and somebody else holds the work now."""


class TrainingError(InstarError):
    """An update could not be computed; its samples stay unused."""


class JudgeUnavailable(InstarError):
    """The model that judges did not answer, or not as an OpenAI-compatible server would; the text says how."""
