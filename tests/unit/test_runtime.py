from __future__ import annotations

import subprocess
import sys

import pytest

from instar.runtime import error_places

RAISE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
from instar.runtime import raise_file_limit
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("hard", [64, 200, 1_000])
def test_process_takes_all_descriptors_that_it_may_have(hard: int) -> None:
    said = subprocess.run([sys.executable, "-c", RAISE.format(hard=hard)], capture_output=True, check=True)
    assert said.stdout.split() == [str(hard).encode()] * 2


def test_places_of_an_error_do_not_quote_it() -> None:
    try:
        int("a secret")
    except ValueError as error:
        [place] = error_places(error)
    assert "test_runtime.py" in place
    assert place.endswith("test_places_of_an_error_do_not_quote_it")
    assert "secret" not in place
