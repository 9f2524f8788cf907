"""The version of kerasdist that is installed."""


def installed_version() -> str | None:
    """Returns the version that pip has installed; a folder on the path has none."""
    from importlib import metadata  # Takes longer than all of `import kerasdist`.

    try:
        return metadata.version("kerasdist")
    except metadata.PackageNotFoundError:
        return None
