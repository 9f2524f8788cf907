"""The programs of TF-Slim's image classification: research/slim of tensorflow/models."""

import re
from dataclasses import replace
from typing import Any

from absl import flags

from .flag import CLONES, CLUSTER, LOGGING, Flag, Program, default_is, not_default, same

# Its nets that are not here, and why. `models.nets` itself loads TensorFlow.
ABSENT_NETS = {
    "i3d": "it needs video input, and this application reads images",
    "s3dg": "it needs video input, and this application reads images",
    "mobilenet_edgetpu": "keras.applications has none for Edge TPUs; try mobilenet_v3_large",
    "mobilenet_edgetpu_075": "keras.applications has none for Edge TPUs; try mobilenet_v3_large",
    "nasnet_cifar": "keras.applications has no NASNet for images of 32 pixels; try cifarnet",
    "pnasnet_large": "keras.applications has no PNASNet; try nasnet_large",
    "pnasnet_mobile": "keras.applications has no PNASNet; try nasnet_mobile",
}
NETS = (
    *ABSENT_NETS,
    "alexnet_v2",
    "cifarnet",
    "inception_resnet_v2",
    *(f"inception_v{version}" for version in (1, 2, 3, 4)),
    "lenet",
    *(f"mobilenet_v1{width}" for width in ("", "_075", "_050", "_025")),
    *(f"mobilenet_v2{width}" for width in ("", "_140", "_035")),
    *(f"mobilenet_v3_{size}" for size in ("large", "small")),
    *(f"mobilenet_v3_{size}_minimalistic" for size in ("large", "small")),
    *(f"nasnet_{size}" for size in ("mobile", "large")),
    "overfeat",
    *(f"resnet_v{version}_{depth}" for version in (1, 2) for depth in (50, 101, 152, 200)),
    *(f"vgg_{layers}" for layers in ("a", 16, 19)),
)
_MASTER = Flag(default="", otherwise=CLUSTER, anyway=("",))
_QUANTIZED = "nets are not trained for numbers of 8 bits (fake quantization)"
_QUANTIZE = Flag(default=False, absent=_QUANTIZED, anyway=("False",))
_NET = Flag(default="inception_v3", here="model_name", refused=ABSENT_NETS)
_NO_GRAPH = "no graph is read: the net is made from --model_name"
_DATA = {
    **not_default(None, dataset_name="imagenet"),
    **same(
        dataset_dir=None,
        labels_offset=0,
        preprocessing_name=None,
        num_preprocessing_threads=4,
        use_grayscale=False,
    ),
}
_CLUSTERED = {
    "worker_replicas": Flag(
        default=1,
        here="worker_replicas",
        otherwise="the launcher starts all tasks, on this machine; on several machines, start the "
        "command after -- on each, where TF_CONFIG, or --worker_hosts, --ps_hosts, --job_name and "
        "--task_id, say which task it is. --max_number_of_steps has to be given",
        anyway=("1",),
    ),
    **same(num_ps_tasks=0),
    "task": Flag(
        default=0,
        here="task",
        otherwise="the launcher, TF_CONFIG, or --worker_hosts with --task_id say which task it is",
    ),
    "master": _MASTER,
    "startup_delay_steps": Flag(default=15, otherwise="the workers begin together", anyway=("0",)),
}
_TRAIN = {
    **_DATA,
    **_CLUSTERED,
    **LOGGING,
    **not_default(None, train_dir="/tmp/tfmodel/", save_summaries_secs=600),
    **same(
        clone_on_cpu=False,
        save_interval_secs=600,
        weight_decay=0.00004,
        optimizer="rmsprop",
        adadelta_rho=0.95,
        adagrad_initial_accumulator_value=0.1,
        adam_beta1=0.9,
        adam_beta2=0.999,
        opt_epsilon=1.0,
        ftrl_learning_rate_power=-0.5,
        ftrl_initial_accumulator_value=0.1,
        ftrl_l1=0.0,
        ftrl_l2=0.0,
        momentum=0.9,
        rmsprop_momentum=0.9,
        rmsprop_decay=0.9,
        learning_rate_decay_type="exponential",
        learning_rate=0.01,
        end_learning_rate=0.0001,
        label_smoothing=0.0,
        learning_rate_decay_factor=0.94,
        num_epochs_per_decay=2.0,
        sync_replicas=False,
        moving_average_decay=None,
        dataset_split_name="train",
        batch_size=32,
        train_image_size=None,
        max_number_of_steps=None,
        checkpoint_path=None,
        checkpoint_exclude_scopes=None,
        trainable_scopes=None,
        ignore_missing_vars=False,
        num_readers=4,
    ),
    "model_name": _NET,
    "num_clones": Flag(default=1, here="num_clones", always=CLONES),
    "log_every_n_steps": Flag(
        default=10, here="log_every_n_steps", always="without it, there are no lines"
    ),
    **not_default(-1, replicas_to_aggregate=1),
    "quantize_delay": Flag(
        default=-1,
        absent=_QUANTIZED,
        anyway=("-1",),
    ),
}
_EVAL = {
    **_DATA,
    **LOGGING,
    **not_default(None, checkpoint_path="/tmp/tfmodel/", eval_dir="/tmp/tfmodel/"),
    "model_name": replace(_NET, always=default_is(None)),
    **same(
        batch_size=100,
        max_num_batches=None,
        dataset_split_name="test",
        eval_image_size=None,
    ),
    "moving_average_decay": Flag(
        default=None,
        here="moving_average_decay",
        otherwise="leave it out where --checkpoint_path has a model.keras, which holds the "
        "averages already",
    ),
    "master": _MASTER,
    "quantize": _QUANTIZE,
}
_CLASSES = "the weights say how many classes there are"
_SIZE = "images have the size that the model was trained with, or that its net has by default"
_EXPORT = {
    **LOGGING,
    "model_name": replace(_NET, always=default_is(None)),
    "output_file": Flag(
        default="",
        here="export_dir",
        otherwise="it is the folder of a SavedModel, which holds the weights, too",
    ),
    "is_training": Flag(
        default=False, absent="a model for training is made by models.train", anyway=("False",)
    ),
    "image_size": Flag(default=None, otherwise=_SIZE),
    "batch_size": Flag(default=None, otherwise="batches of any size are taken"),
    "dataset_name": Flag(default="imagenet", otherwise=_CLASSES),
    "dataset_dir": Flag(default="", otherwise=_CLASSES),
    "labels_offset": Flag(default=0, otherwise=_CLASSES),
    "quantize": _QUANTIZE,
    "use_grayscale": Flag(default=False, otherwise=_CLASSES.replace("classes", "channels")),
    "is_video_model": Flag(default=False, absent="no net here takes videos", anyway=("False",)),
    "num_frames": Flag(default=None, absent="no net here takes videos"),
    "write_text_graphdef": Flag(
        default=False, absent="a SavedModel is not text", anyway=("False",)
    ),
}
_FREEZE = {
    **LOGGING,
    "input_checkpoint": Flag(default="", here="checkpoint_path"),
    "output_graph": Flag(
        default="",
        here="export_dir",
        otherwise="it is the folder of a SavedModel, with the weights",
    ),
    **{
        name: Flag(default="", otherwise=_NO_GRAPH, anyway=("",))
        for name in ("input_graph", "input_meta_graph", "input_saver", "initializer_nodes")
    },
    **{
        name: Flag(default=False, otherwise=_NO_GRAPH, anyway=("False", "True"))
        for name in ("input_binary", "clear_devices")
    },
    "output_node_names": Flag(
        default="", otherwise="the outputs are named logits and probabilities"
    ),
}


def _of_train(values: flags.FlagValues) -> dict[str, Any]:
    # Without it, each worker gives a gradient.
    number = values.replicas_to_aggregate if values.sync_replicas else None
    return {"replicas_to_aggregate": number, "task": None}


def _of_export(values: flags.FlagValues) -> dict[str, Any]:
    return {"export_dir": _folder(values.output_file)} if values.output_file else {}


def _of_freeze(values: flags.FlagValues) -> dict[str, Any]:
    text = f"{values.input_graph} {values.output_graph}"
    found = [name for name in NETS if name in text]
    named = {"model_name": max(found, key=len)} if found else {}
    return {**named, "export_dir": _folder(values.output_graph)}


def _folder(file: str) -> str:
    return re.sub(r"\.(pb|pbtxt)$", "", file)


PROGRAMS = {
    "train_image_classifier": Program(
        command="train",
        flags=_TRAIN,
        fixed={},
        computed=_of_train,
        notes=(
            "Batch normalization uses mean and variance of the batch of all clones and workers; "
            "in slim, each clone had its own, and the moving averages were those of the first "
            "clone. With synchronous parameter servers it is as in slim.",
            "The loss in the lines is the mean over all clones and workers.",
            "Each example is read once in an epoch, in an order that --seed decides; after each "
            "epoch the model is measured on the split test or validation, if there is one.",
            "The preprocessing `inception` distorts brightness and saturation, as in slim's "
            "fast mode.",
            "--train_dir gets a folder of checkpoints, and at the end model.keras. If TF-Slim has "
            "trained into it, that training goes on. The newest two checkpoints are kept; "
            "--keep_checkpoints=5 keeps as many as there.",
        ),
    ),
    "eval_image_classifier": Program(
        command="evaluate",
        flags=_EVAL,
        fixed={},
        notes=(
            "Each example counts once; slim read some again to fill the last batch.",
            "--eval_dir also gets the results, a confusion matrix and the worst mistakes as files.",
        ),
    ),
    "export_inference_graph": Program(
        command="export",
        flags=_EXPORT,
        fixed={"checkpoint_path": "/tmp/tfmodel/"},
        computed=_of_export,
        notes=(
            "The weights are in the export, so freeze_graph is not needed. Give your --train_dir "
            "or checkpoint as --checkpoint_path; /tmp/tfmodel/ is where slim's trainer wrote by "
            "default.",
        ),
    ),
    "freeze_graph": Program(
        command="export",
        flags=_FREEZE,
        fixed={},
        computed=_of_freeze,
        notes=(
            "The export is a SavedModel, which TensorFlow Serving reads. --form=onnx and "
            "--form=litert write one file for other runtimes, as a frozen graph was.",
            "--model_name is taken from the names of the graphs; add it if they do not say it.",
        ),
    ),
}
