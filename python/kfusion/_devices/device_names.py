"""What to say of a name that the device table does not have: the nearest names of the same kind."""

from __future__ import annotations

import difflib
import re

from .device_table import by_key, key_of, kinds

_NEAR, _SHOWN = 0.5, 3
# What the name of each kind looks like, as `key_of` writes it; the first one that fits.
_LOOKS = (
    ("GeForce laptop", r"(rtx|gtx)?\d{3,4}.*(laptop.*|m)"),
    ("NVIDIA workstation", r"rtxa?\d000.*|a[2456]000.*|quadro.*"),
    ("GeForce", r"(rtx|gtx)?\d{4}.*|(rtx|gtx).*"),
    ("AMD", r"(mi\d|radeon|rx\d).*"),
    ("Apple", r"m[1-9].*"),
    ("CPU", r".*(epyc|xeon|ryzen|core|threadripper|cpu).*"),
    ("NVIDIA data center", r"g?[a-z]\d{1,3}.*"),
)


def hint(name: str) -> str:
    """ "did you mean ...?" with names of the kind that this one looks like, or all names by kind."""
    key = re.sub(r"mobile|maxq", "laptop", key_of(name))
    kind = next((kind for kind, looks in _LOOKS if re.fullmatch(looks, key)), None)
    if near := _nearest(key, kind):
        return f"did you mean {' or '.join(near)}?"
    if kind is not None:
        return f"of this kind ({kind}) there are {', '.join(kinds()[kind])}"
    return "there are " + "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds().items())


def _nearest(key: str, kind: str | None) -> list[str]:
    """Names of a kind, or of all, the most alike first: with the same number, then by all letters."""
    of_kind = {name for names in kinds().values() for name in names} if kind is None else set(kinds()[kind])
    keys = [k for k, device in by_key().items() if device.name in of_kind]
    close = difflib.get_close_matches(key, keys, n=len(keys), cutoff=_NEAR)

    def rank(k: str) -> tuple[bool, float, int]:
        apart = abs(_number(k) - _number(key))
        return apart > 0, -round(_ratio(k, key), 1), apart

    ranked = sorted(close, key=rank)
    return list(dict.fromkeys(by_key()[k].name for k in ranked))[:_SHOWN]


def _number(key: str) -> int:
    found = re.search(r"\d+", key)
    return int(found[0]) if found else 0


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
