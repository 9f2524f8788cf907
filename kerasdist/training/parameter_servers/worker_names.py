"""Names of what workers keep for the chief."""

import uuid


def unique_name() -> str:
    """Returns a name that nobody else has, also where a later program meets the same workers."""
    return f"kerasdist_{uuid.uuid4().hex}"
