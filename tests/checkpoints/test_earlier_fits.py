"""kerasdist.checkpoints.earlier_fits: which trainings have ended in this process."""

import keras

from kerasdist.checkpoints import earlier_fits


def test_fits_are_counted_for_each_model_and_folder(monkeypatch, tmp_path):
    first, second = keras.Model(), keras.Model()
    run, other = str(tmp_path / "run"), str(tmp_path / "other")
    assert earlier_fits.count(first, run) == 0
    earlier_fits.note(first, run, {}, 0)
    earlier_fits.note(first, run, {}, 0)
    earlier_fits.note(first, other, {}, 0)
    assert earlier_fits.count(first, run) == 2
    assert earlier_fits.count(first, other) == 1
    assert earlier_fits.count(second, run) == 0
    monkeypatch.chdir(tmp_path)
    assert earlier_fits.count(first, "run") == 2  # The same folder.


def test_the_last_model_of_a_folder_is_remembered(tmp_path):
    first, second, run = keras.Model(), keras.Model(), str(tmp_path)
    assert not earlier_fits.is_last_of_another(first, run)
    earlier_fits.note(first, run, {}, 0)
    assert not earlier_fits.is_last_of_another(first, run)
    assert earlier_fits.is_last_of_another(second, run)
    earlier_fits.note(second, run, {}, 0)
    assert earlier_fits.is_last_of_another(first, run)
