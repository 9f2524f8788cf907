"""Flags of the legacy trainers that have no counterpart here, each with what to do instead."""

_CLUSTER = "TF_CONFIG, a launcher, or --worker_hosts and --ps_hosts say where the other tasks are"
_STEPS = "--max_number_of_steps says how long to train"
_RATE = "--learning_rate says where the learning rate begins"
_FINE_TUNING = "--checkpoint_path says which weights to begin with"

ANSWERS = {
    # train_image_classifier
    "master": _CLUSTER,
    "num_readers": "tf.data itself reads files in parallel",
    "quantize_delay": "nets are trained with the numbers they are evaluated with",
    # eval_image_classifier
    "quantize": "nets are evaluated with the numbers they were trained with",
    # The Inception trainers
    "max_steps": _STEPS,
    "num_gpus": "--num_clones says how many GPUs each worker uses",
    "subset": "--dataset_split_name says which part of the dataset to read",
    "data_dir": "--dataset_dir says where the datasets are",
    "image_size": "--train_image_size says how large the images are",
    "initial_learning_rate": _RATE,
    "num_preprocess_threads": "--num_preprocessing_threads says how many threads there are",
    "input_queue_memory_factor": "--batch_size and the dataset decide how much is read ahead",
    "fine_tune": _FINE_TUNING,
    "pretrained_model_checkpoint_path": _FINE_TUNING,
    "checkpoint_dir": "--checkpoint_path of models.evaluate says which model to measure",
    "protocol": "TensorFlow uses gRPC on every network",
    "log_device_placement": "the plan at the beginning says which devices are used",
    "run_once": "models.evaluate runs once, unless --continuous is given",
    "num_examples": "--max_num_batches of models.evaluate says how much is read",
}
