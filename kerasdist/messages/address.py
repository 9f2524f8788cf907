"""Checks addresses "host:port" of the tasks, with a message for every mistake in one."""

import ipaddress
import re

_HOST = re.compile(r"[\w.-]+|\[[\w:.%-]+\]")


def split_address(address: str) -> tuple[str, int]:
    """Returns the host, an IPv6 address without its brackets, and the port of a checked address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def bracketed(host: str) -> str:
    """Returns a host as it stands in an address: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether a host is no other than the machine that calls it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(task: object, address: object) -> None:
    """Raises a ValueError unless `address` is "host:port"."""
    received = f"Received: {address!r} for {task}."
    if not isinstance(address, str):
        raise ValueError(f'An address must be text like "host:2222". {received}')
    if "://" in address:
        raise ValueError(
            f'An address is "host:port", without a scheme. {received} '
            f'Remove "{address.partition("://")[0]}://".'
        )
    host, colon, port = address.rpartition(":")
    _check_host(host if colon else address, received)
    if not colon:
        raise ValueError(f'The port is missing. {received} Write "{address}:2222".')
    _check_port(port, received)


def _check_host(host: str, received: str) -> None:
    if not host or any(character.isspace() for character in host):
        raise ValueError(f'An address needs a host name or IP, as in "host:2222". {received}')
    if "," in host:
        raise ValueError(f'An address is that of one task. {received} Separate them: "a:1", "b:1".')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f'An IPv6 address needs brackets, as in "[::1]:2222". {received}')
    if not _HOST.fullmatch(host):
        raise ValueError(
            f'A host name has letters, digits, "-", "_" and ".", as in "host:2222". {received}'
        )


def _check_port(port: str, received: str) -> None:
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise ValueError(f"The port must be a number from 1 to 65535. {received}")
