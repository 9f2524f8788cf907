"""How a user calls the programs of this application: from a clone, and where it is installed.

Messages and help are written as for a clone, `python -m models.train`; `command` shows them
`as_called`.
"""

import re

_IN_CLONE = re.compile(r"(?<![\w./])(?:python -m )?models\.([a-z_0-9]+(?:\.[a-z_0-9]+)*)")


def words(program: str) -> list[str]:
    """Returns the words that call a program, such as "train" or "recipes.lenet_digits"."""
    if __name__ == "models.programs":
        return ["python", "-m", f"models.{program}"]
    return ["kerasdist-models", program]


def as_called(text: str) -> str:
    """Returns a text in which each program is called as here."""
    if words("train")[0] == "python":
        return text
    return _IN_CLONE.sub(lambda found: " ".join(words(found[1])), text)
