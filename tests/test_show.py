"""`python -m kerasdist show`: runs as a picture, and what limited them."""

from typing import Any

import pytest
import tensorflow as tf
from matplotlib import image

from kerasdist import show
from kerasdist.__main__ import main
from kerasdist.callbacks import Summaries
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop


def run_in(folder):
    model = hand_loop.make_model(strategies.get("one device"), metrics=["mae"])
    callback = Summaries(folder, every_steps=3)
    return hand_loop.fit(model, [callback], validation_data=examples(20))


def test_two_runs_in_one_picture(tmp_path, capsys):
    histories = [run_in(tmp_path / name) for name in ("first", "second")]
    output = tmp_path / "pictures/run.png"

    assert (
        main(["show", str(tmp_path / "first"), str(tmp_path / "second"), f"--output={output}"]) == 0
    )

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("first: train/loss ")
    assert f"validation/epoch_loss {histories[0]['val_loss'][-1]:.4g} in the last epoch" in said[0]
    assert said[1].startswith("second: ")
    assert said[-1] == f"Written: {output}"
    height, width, _ = image.imread(output).shape
    assert height > width / 2


def test_the_numbers_of_a_run(tmp_path):
    history = run_in(tmp_path)

    curves = show.read(tmp_path)
    assert curves["train/epoch_mae"] == pytest.approx(
        dict(zip((7, 14), history["mae"], strict=True))
    )
    assert list(curves["train/learning_rate"]) == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("share", "limit"), [(0.6, "waiting for the next batch, 60%"), (0.1, "Bottleneck: computation")]
)
def test_what_limits_a_run(share, limit):
    curves = {
        "train/loss": {10: 2.0, 20: 1.0},
        "train/examples_per_second": {10: 100.0, 20: 300.0},
        "train/input_wait_share": {20: share},
        "train/step_ms": {20: 5.0},
    }

    text = show.sentence_on("run", curves)
    assert text.startswith("run: train/loss 1 at step 20, 200 examples/s. ")
    assert limit in text


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["show", ""], "RUN"), (["show", "run", "--output="], "--output"), (["trace", ""], "FILE")],
)
def test_an_empty_path_is_named(arguments, name, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    assert f"error: argument {name}: must not be empty. Received: ''." in capsys.readouterr().err


def test_a_folder_without_numbers_is_one_line(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: There are no numbers in {tmp_path}. ")
    assert main(["show", str(tmp_path), str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.startswith(f"error: There is no folder {tmp_path / 'other'}. ")
    (tmp_path / "file").touch()
    assert main(["show", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'file'} is a file. Name the ")


def test_a_run_without_losses_says_what_it_lacks(tmp_path, capsys):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("queue_size", 3.0, step=1)

    assert main(["show", str(tmp_path), f"--output={tmp_path / 'run.png'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: There are no losses, rates or epoch logs to draw in {tmp_path}")
    assert said.endswith("Name the log_dir of callbacks.Summaries or TensorBoard.\n")


def test_an_unknown_kind_of_picture_is_one_line(tmp_path, capsys):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("loss", 3.0, step=1)

    assert main(["show", str(tmp_path), f"--output={tmp_path / 'run.picture'}"]) == 2
    assert capsys.readouterr().err.startswith("error: Format 'picture' is not supported")


def write_scalars(folder, tag="loss"):
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step in range(3):
            tf.summary.scalar(tag, 3.0 - step, step=step)


def test_a_folder_of_event_files_itself_is_a_run(tmp_path):
    write_scalars(tmp_path)

    assert show.sentence_on("run", show.read(tmp_path)) == "run: loss 1 at step 2."


def test_a_folder_of_runs_is_each_of_them(tmp_path, capsys, monkeypatch):
    for name in ("runs/lr 0.1/train", "runs/lr 0.1/validation", "runs/lr 0.01/train", "runs/plain"):
        write_scalars(tmp_path / name)
    monkeypatch.chdir(tmp_path / "runs")

    assert main(["show", ".", "lr 0.1", f"--output={tmp_path / 'run.png'}"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[:-1]] == ["lr 0.01", "lr 0.1", "plain"]


def test_a_run_without_numbers_yet_is_named_and_the_others_are_drawn(tmp_path, capsys):
    for name in ("first", "second"):
        write_scalars(tmp_path / name)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "events.out.tfevents.1").touch()

    assert main(["show", str(tmp_path), f"--output={tmp_path / 'run.png'}"]) == 0

    *told, empty, _ = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["first", "second"]
    assert empty == "No numbers yet: begun."


@pytest.mark.parametrize(
    ("lines", "unit"),
    [
        ({"train/loss": {0: 1.0, 1: 1.0}}, "step"),
        ({"train/epoch_loss": {7: 1.0, 14: 1.0}}, "step"),
        ({"train/epoch_loss": {3: 1.0, 4: 1.0}}, "epoch"),
        ({"train/epoch_loss": {0: 1.0}}, "epoch"),
        ({"train/loss": {5: 1.0}, "validation/epoch_loss": {0: 1.0, 1: 1.0}}, "step or epoch"),
    ],
)
def test_the_axis_says_what_the_points_are(lines, unit):
    assert show._unit_of({("run", tag): line for tag, line in lines.items()}) == unit


def test_the_rates_of_several_optimizers_are_in_one_panel():
    tags = ("train/learning_rate_adam", "train/epoch_learning_rate_sgd")

    panels = show._panels({"run": {tag: {0: 0.1} for tag in tags}})

    assert [(title, len(lines)) for title, lines in panels] == [("learning rate", 2)]


def test_a_run_has_the_same_colour_in_all_panels():
    runs, tags = ["first", "second"], ["train/loss", "validation/epoch_loss"]

    looks = [show._look_of("second", tag, runs=runs, tags=tags) for tag in tags]
    assert looks == [{"color": "C1", "linestyle": "-"}, {"color": "C1", "linestyle": "--"}]
    assert show._look_of("first", tags[1], runs=runs[:1], tags=tags)["color"] == "C1"


@pytest.mark.parametrize(
    ("given", "written"),
    [("curves", "curves.png"), ("pictures", "pictures/run.png"), ("a.pdf", "a.pdf")],
)
def test_what_is_written_is_said(given, written, tmp_path, capsys):
    write_scalars(tmp_path / "run")
    (tmp_path / "pictures").mkdir()

    assert main(["show", str(tmp_path / "run"), f"--output={tmp_path / given}"]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == f"Written: {tmp_path / written}"
    assert (tmp_path / written).is_file()


def damaged(path):
    content = bytearray(path.read_bytes())
    content[-30] ^= 255
    return bytes(content)


def test_files_that_cannot_be_read_are_named_and_others_are_drawn(tmp_path, capsys):
    write_scalars(tmp_path / "train")
    (written,) = (tmp_path / "train").iterdir()
    (tmp_path / "events.out.tfevents.1").write_bytes(damaged(written))
    (tmp_path / "events.out.tfevents.2").symlink_to(tmp_path / "gone")
    (tmp_path / "events.out.tfevents.3").mkdir()
    writer: Any = tf.io.TFRecordWriter(str(tmp_path / "events.out.tfevents.4"))
    writer.write(b"\xff no event")
    writer.close()
    # Of a run that was killed: no news.
    (tmp_path / "events.out.tfevents.5").write_bytes(written.read_bytes()[:-3])

    assert main(["show", str(tmp_path), f"--output={tmp_path / 'run.png'}"]) == 0

    _, told, _ = capsys.readouterr().out.splitlines()
    assert told.startswith("Not read, or not to the end: ")
    assert all(f"events.out.tfevents.{number}" in told for number in (1, 2, 3))
    assert told.endswith(", ....")


def test_a_run_of_damaged_files_says_so(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(bytes(range(100)))

    with pytest.raises(show.UsageError, match=r"no numbers in .*Not read, .*tfevents\.1\. Name "):
        show.read(tmp_path)


def test_a_log_with_a_slash_in_its_name_is_drawn(tmp_path):
    write_scalars(tmp_path / "train", "epoch_top/5")
    write_scalars(tmp_path / "train", "worker_1/loss")

    panels = show._panels({"run": show.read(tmp_path)})

    assert [(title, list(lines)) for title, lines in panels] == [
        ("top/5", [("run", "train/epoch_top/5")])
    ]


def test_several_numbers_under_one_name_are_left_out(tmp_path):
    write_scalars(tmp_path)
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        )
        tf.summary.write("pair", tf.constant([1.0, 2.0]), step=0, metadata=metadata)

    assert list(show.read(tmp_path)) == ["loss"]


@pytest.mark.parametrize("name", ["cost in $, or $x^{", "_hidden"])
def test_names_are_no_formulas(name, tmp_path):
    write_scalars(tmp_path / name / "train", "epoch_$x^{")

    show.show([tmp_path / name], tmp_path / "run.png")

    assert (tmp_path / "run.png").exists()


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path, capsys):
    write_scalars(tmp_path)
    (tmp_path / "file").write_text("")

    assert main(["show", str(tmp_path), f"--output={tmp_path / 'file/run.png'}"]) == 2
    assert "`output` cannot be written" in capsys.readouterr().err
