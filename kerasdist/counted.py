"""A number of things in a message, in the singular where there is one."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns "1 step" or "1,437 steps".

    Args:
        number: How many there are.
        one: What one of them is called.
        several: What others are called; `one` with an s by default.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
