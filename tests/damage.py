"""Damage to files."""

from pathlib import Path

DAMAGES = ("short", "flipped", "missing")


def damage(path: Path, how: str) -> None:
    """Cut a file short, change one of its bits, or remove it."""
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return
    content[len(content) // 2] ^= 1
    path.write_bytes(content if how == "flipped" else content[: len(content) * 9 // 10])
