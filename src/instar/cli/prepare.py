"""`python -m instar.cli.prepare`: fetch and convert the configured model before anything is served."""

from __future__ import annotations

import sys

from instar.cli.terminal import complain, progress_bar
from instar.config import load_settings
from instar.errors import UserError


def main() -> int:
    """Exit status 0, or 2 with one line that says what to do."""
    from instar import compose  # loads the store and the web server, which a wrong setting does not need

    try:
        with progress_bar() as report:
            compose.prepare_model(load_settings(), report)
    except UserError as error:
        complain(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
