"""A JSON5 file that belongs to another program: read, changed in places, and everything else left as it was.

Comments, spacing, quotes and the order of keys survive. Nothing is destroyed: the old file is kept beside the new
one, a file that cannot be understood is refused, and the new text is read again before it takes the old one's place.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.errors import UserError
from instar.workers.state import write_private

Document = dict[str, Any]
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One value that a patch sets. `before` is None where there was none."""

    place: Place
    before: Any
    after: Any

    @property
    def path(self) -> str:
        return ".".join(self.place)


@dataclass(frozen=True, slots=True)
class Json5File:
    """What was read. `path` has no links in it; `text` is None where there is no file yet."""

    path: Path
    text: str | None
    content: Document

    @classmethod
    def read(cls, path: Path) -> Json5File:
        """Raises UserError, which says what to do, when there is a file that cannot be used."""
        path = path.expanduser().resolve()
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            return cls(path, None, {})
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}). Nothing was changed.") from error
        return cls(path, text, _parse(text, path) if text.strip() else {})

    def changes(self, patch: Document) -> list[Change]:
        """What `patch` would set, leaf by leaf, but for what is there already. Raises UserError where it cannot."""
        return list(_changes(self.content, patch, (), self.path))

    def merged(self, patch: Document) -> Document:
        """The content with `patch` laid over it: objects merge, everything else replaces."""
        return _merged(self.content, patch)

    def patched(self, patch: Document) -> str:
        """The new text. Raises UserError when it would not say what is wanted."""
        wanted = self.merged(patch)
        if not self.text or not self.text.strip():
            return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
        text = _patched_text(self.text, patch)
        if _parse(text, self.path) != wanted:
            raise UserError(
                f"{self.path} is written in a way that cannot be changed safely. Nothing was changed: "
                "paste the lines by hand."
            )
        return text

    def write(self, text: str, backup: Path) -> None:
        """Keep the old file as `backup`, then replace it in one step, readable by its owner alone: a key is in it.

        Raises UserError when the file changed since it was read, or cannot be written.
        """
        try:
            if self.text is not None:
                now = self.path.read_bytes()
                if now.decode("utf-8-sig", "replace") != self.text:
                    raise UserError(f"{self.path} was changed by somebody else just now. Start again.")
                write_private(backup, now.decode("utf-8"))
            write_private(self.path, text)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error}). Nothing was changed.") from error


def _parse(text: str, path: Path) -> Document:
    import json5

    try:
        value = json5.loads(text)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is not valid JSON5 ({why}). Nothing was changed: mend the file first."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold an object. Nothing was changed: mend the file first.")
    return value


def _changes(have: Document, patch: Document, place: Place, path: Path) -> list[Change]:
    found: list[Change] = []
    for key, value in patch.items():
        here, old = (*place, key), have.get(key)
        if isinstance(value, dict) and value and isinstance(old, dict | None):
            found += _changes(old or {}, value, here, path)
        elif isinstance(value, dict) and value:
            raise UserError(
                f"In {path}, {'.'.join(here)} is no object. Nothing was changed: mend the file first."
            )
        elif old != value or key not in have:
            found.append(Change(here, old, value))
    return found


def _merged(have: Document, patch: Document) -> Document:
    new = dict(have)
    for key, value in patch.items():
        old = new.get(key)
        new[key] = _merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return new


def _patched_text(text: str, patch: Document) -> str:
    from json5.dumper import ModelDumper, dumps
    from json5.loader import ModelLoader, loads

    tree = loads(text, loader=ModelLoader())
    step = re.search(r"\n([ \t]+)\S", text)
    _patch_object(tree.value, patch, step[1] if step else "  ", depth=1)
    writer: Any = ModelDumper()  # its type does not say that it is a dumper
    return dumps(tree, dumper=writer)


def _patch_object(node: Any, patch: Document, step: str, depth: int) -> None:
    """Change an object of the syntax tree in place. Spacing and comments hang on the values and keys themselves."""
    places = {_name(key): i for i, key in enumerate(node.keys)}
    for name, value in patch.items():
        if name not in places:
            _append(node, name, value, step, depth)
            continue
        old = node.values[places[name]]
        if isinstance(value, dict) and hasattr(old, "keys"):
            _patch_object(old, value, step, depth + 1)
        else:
            new = _node(value, step, depth)
            new.wsc_before, new.wsc_after = old.wsc_before, old.wsc_after
            node.values[places[name]] = new


def _append(node: Any, name: str, value: Any, step: str, depth: int) -> None:
    """A new entry on a line of its own, at the end of its object."""
    line = "\n" + step * depth
    key, new = _node(name, step, depth), _node(value, step, depth)
    key.wsc_before, new.wsc_before = [line], [" "]
    if node.trailing_comma is None:
        # What stood between the last value and the closing brace goes behind the new one, but for comments, which
        # belong to the value that they follow.
        last = node.values[-1] if node.values else None
        if last is not None and all(isinstance(part, str) for part in last.wsc_after):
            last.wsc_after, new.wsc_after = [], last.wsc_after
        if not any("\n" in part for part in new.wsc_after if isinstance(part, str)):
            new.wsc_after = ["\n" + step * (depth - 1)]
    else:
        told = node.trailing_comma.wsc_after
        size = max((i + 1 for i, part in enumerate(told) if not isinstance(part, str)), default=0)
        key.wsc_before = [*told[:size], line]
        node.trailing_comma.wsc_after = told[size:] or ["\n" + step * (depth - 1)]
    node.keys.append(key)
    node.values.append(new)


def _node(value: Any, step: str, depth: int) -> Any:
    from json5.loader import ModelLoader, loads

    text = json.dumps(value, indent=step, ensure_ascii=False).replace("\n", "\n" + step * depth)
    return loads(text, loader=ModelLoader()).value


def _name(key: Any) -> str:
    return str(key.name if hasattr(key, "name") else key.characters)
