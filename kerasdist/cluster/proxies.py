"""Lets the tasks of a cluster reach each other without a proxy, which is for the internet."""

import os
from collections.abc import Iterable

from kerasdist.messages.address import split_address

NO_PROXY = "no_grpc_proxy"
_OF_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")


def bypass(addresses: Iterable[str]) -> None:
    """Lets gRPC connect to the tasks directly, where variables such as `http_proxy` name a proxy.

    TensorFlow's tasks would otherwise wait for each other through it, and in vain.

    Args:
        addresses: "host:port" of all tasks.
    """
    if not any(os.environ.get(name) for name in _OF_GRPC):
        return
    # gRPC, too, reads the second where there is no first.
    known = os.environ.get(NO_PROXY) or os.environ.get("no_proxy") or ""
    hosts = {split_address(address)[0] for address in addresses}
    os.environ[NO_PROXY] = ",".join(filter(None, [known, *sorted(hosts)]))
