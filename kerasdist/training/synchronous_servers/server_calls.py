"""Lets a parameter server run a function for a worker, with one message in the place of several.

Each operation that a worker puts on a server takes a message there and one back, and in a loop some
more, by which TensorFlow tells the server how often the loop runs. A function that the server runs
as a whole takes one, with its arguments and what it returns:

    (token,) = server_calls.call(device, say_and_wait, message, *gradients)

Functions know variables and queues by numbers: an operation that was given a resource would be put
where that is, and each of its arguments would be sent by itself.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.parameter_servers import local_copies


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """What travels with the message of somebody else.

    Attributes:
        tensors: What is sent.
        unpack: Called as unpack(*tensors), traced for the server; returns the operations that have
            ended when all is where it belongs.
    """

    tensors: tuple = ()
    unpack: Callable[..., list] = lambda: []


def call(device: str, function: Callable[..., list], *arguments: tf.Tensor) -> list[tf.Tensor]:
    """Runs a function on another task; traced for a worker.

    Args:
        device: Of a parameter server.
        function: Called as function(*arguments); returns tensors. It uses nothing from outside.
        *arguments: No resources.
    """
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in arguments]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    assert not concrete.captured_inputs
    # Whatever is near has another device.
    with tf.device("/device:CPU:0"):
        results = tf.raw_ops.RemoteCall(
            target=device,
            args=list(arguments),
            Tout=[spec.dtype for spec in concrete.structured_outputs],
            f=concrete,
        )
    for result, spec in zip(results, concrete.structured_outputs, strict=True):
        result.set_shape(spec.shape)
    return results


def deliver(device: str, parcel: Parcel) -> list[tf.Tensor]:
    """Sends a parcel by itself; returns what is there once it is unpacked."""
    if not parcel.tensors:
        return []

    def unpack(*tensors: tf.Tensor) -> list:
        with tf.control_dependencies(parcel.unpack(*tensors)):
            return [tf.constant(True)]

    return call(device, unpack, *parcel.tensors)


class Shelf:
    """Resources of a parameter server, by numbers; they are there no longer than this object.

    Args:
        device: Of the server.

    Attributes:
        name: Of the resource that keeps them there.
    """

    def __init__(self, device: str):
        self._device, self._count = device, 0
        self.name = variable_adapter.unique_name()
        # What is on the shelf would keep the weights of a model that is gone.
        weakref.finalize(self, _clear, device, self.name).atexit = False

    def put(self, resources: list[tf.Tensor]) -> int:
        """Returns a number for some resources."""
        number, self._count = self._count, self._count + 1
        with tf.device(self._device):
            tf.raw_ops.MapStage(
                key=tf.constant(number, tf.int64),
                indices=list(range(len(resources))),
                values=resources,
                dtypes=[tf.resource] * len(resources),
                shared_name=self.name,
            )
        return number

    def get(self, number: Any, count: int = 1) -> list[tf.Tensor]:
        """Returns the resources of a number that somebody was given; traced for the server."""
        return tf.raw_ops.MapPeek(
            key=tf.cast(number, tf.int64),
            indices=list(range(count)),
            dtypes=[tf.resource] * count,
            shared_name=self.name,
        )


def _clear(device: str, name: str) -> None:
    with contextlib.suppress(tf.errors.OpError), tf.init_scope(), tf.device(device):
        tf.raw_ops.MapClear(dtypes=[tf.resource], shared_name=name)


class Reads:
    """Small variables that a worker reads again and again, with one message for each server.

    Args:
        variables: TensorFlow's, of parameter servers.
    """

    def __init__(self, variables: list):
        self._groups: dict[str, list[dict[int, Any]]] = {}
        for group in local_copies.by_server(dict(enumerate(variables))):
            self._groups.setdefault(next(iter(group.values())).device, []).append(group)
        with tf.init_scope():
            self._shelves = {device: self._shelf_of(device) for device in self._groups}

    def on_server(self, device: str) -> list[tf.Tensor]:
        """Reads those of a server; traced for it."""
        groups = self._groups.get(device, [])
        if not groups:
            return []
        handles = iter(self._shelves[device].get(0, sum(map(len, groups))))
        return [
            local_copies.pack(
                [
                    tf.raw_ops.ReadVariableOp(resource=next(handles), dtype=variable.dtype)
                    for variable in group.values()
                ]
            )
            for group in groups
        ]

    def fetched(self, device: str, found: list[tf.Tensor]) -> Callable[[list], list]:
        """Reads what the other servers have; traced for a worker.

        Args:
            device: Of the server on which `on_server` has run.
            found: What it has returned.

        Returns:
            A function of some of the variables that returns their values.
        """
        values = {}
        for server, groups in self._groups.items():
            packs = found if server == device else self._read_from(server)
            for group, packed in zip(groups, packs, strict=True):
                parts = local_copies.unpack(packed, list(group.values()))
                values.update(
                    (id(each), part) for each, part in zip(group.values(), parts, strict=True)
                )
        return lambda variables: [values[id(each)] for each in variables]

    def _read_from(self, server: str) -> list[tf.Tensor]:
        return call(server, lambda _: self.on_server(server), tf.zeros([]))  # It takes some.

    def _shelf_of(self, device: str) -> Shelf:
        shelf = Shelf(device)
        shelf.put([each.handle for group in self._groups[device] for each in group.values()])
        return shelf
