"""The preprocessings: one table, name to function. A new one is an import and a row.

preprocess = preprocessing.find("lenet")
image = preprocess(image, image_size=28, seed=None)
"""

from typing import Any, Protocol

from .. import nets, own_parts
from ..usage_error import check_name
from . import cifarnet, inception, inception_full, lenet, vgg


class Preprocess(Protocol):
    """Turns a stored image into what a net takes.

    One with a parameter `boxes`, None by default, gets the bounding boxes of the image in training,
    as `Dataset.boxes` gives them.
    """

    def __call__(self, image: Any, *, image_size: int, seed: Any):
        """Returns float32 [image_size, image_size, channels].

        Args:
            image: uint8 [height, width, channels].
            image_size: Height and width of the result, in pixels.
            seed: int64 [2], the seed of the random distortions in training. None means evaluation,
                without distortions.
        """
        ...


PREPROCESSINGS: dict[str, Preprocess] = {
    "cifarnet": cifarnet.preprocess,
    "inception": inception.preprocess,
    "inception_full": inception_full.preprocess,
    "lenet": lenet.preprocess,
    "vgg": vgg.preprocess,
}


def find(name: str) -> Preprocess:
    """Returns the preprocessing `name`.

    That may be the name of a net, as in slim, or the module and name of one's own function.

    Raises:
        UsageError: There is no such preprocessing; the message lists the valid names.
    """
    if own_parts.is_own(name):
        return own_parts.find("--preprocessing_name", name)
    if name in nets.NETS and name not in PREPROCESSINGS:
        name = nets.NETS[name].preprocessing
    check_name("--preprocessing_name", name, PREPROCESSINGS)
    return PREPROCESSINGS[name]
