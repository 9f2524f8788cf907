"""A checkpoint that writes nothing itself decides as Keras' own does."""

import keras
import pytest

from kerasdist.private.quiet_checkpoint import QuietCheckpoint


class Model:
    """What a ModelCheckpoint asks of a model, with a `save` that only notes its calls."""

    metrics = ()

    def __init__(self):
        self.saved = []

    def save(self, path, overwrite):
        self.saved.append(path)


def run(kind, folder, *, save_freq: str | int) -> tuple:
    checkpoint = kind(
        folder / "{epoch}.keras", "score", 1, save_best_only=True, mode="min", save_freq=save_freq
    )
    model = Model()
    checkpoint.set_model(model)
    for epoch, score in enumerate([3.0, 4.0, 2.0]):
        checkpoint.on_epoch_begin(epoch)
        checkpoint.on_train_batch_end(0, {"score": score})
        checkpoint.on_epoch_end(epoch, {"score": score})
    return [path.split("/")[-1] for path in model.saved], checkpoint.best, checkpoint.filepath


def test_it_saves_and_knows_the_best_as_keras_own_and_makes_no_folder(tmp_path, capsys):
    ours = run(QuietCheckpoint, tmp_path / "new", save_freq="epoch")
    assert not list(tmp_path.iterdir())
    assert not capsys.readouterr().out

    assert ours == run(keras.callbacks.ModelCheckpoint, tmp_path / "new", save_freq="epoch")
    assert ours[:2] == (["1.keras", "3.keras"], 2.0)


@pytest.mark.parametrize("kind", [QuietCheckpoint, keras.callbacks.ModelCheckpoint])
def test_between_two_steps_it_saves_nothing(tmp_path, kind):
    saved, _, _ = run(kind, tmp_path, save_freq=1)

    assert bool(saved) == (kind is not QuietCheckpoint)
