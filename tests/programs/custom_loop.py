"""In the manner of TensorFlow's tutorials on a training loop of one's own over a strategy.

`strategy.run` over a distributed dataset, losses divided by the global batch, metrics made in the
scope, checkpoints written and restored with `tf.train`.
"""

import tempfile

import keras
import numpy as np
import tensorflow as tf

import kerasdist

GLOBAL_BATCH_SIZE = 8


def get_dataset(seed, num_examples):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(num_examples, 6, 6, 1)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0.5).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)


def create_model():
    regularizer = keras.regularizers.L2(1e-3)
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(2, kernel_regularizer=regularizer),
        ]
    )


def run(strategy, *, directory):
    keras.utils.set_random_seed(22)
    strategy = strategy or tf.distribute.get_strategy()
    train_dist_dataset = strategy.experimental_distribute_dataset(get_dataset(0, 40))
    test_dist_dataset = strategy.experimental_distribute_dataset(get_dataset(1, 16))
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        model = create_model()
        optimizer = keras.optimizers.Adam(learning_rate=0.01)
        epoch = tf.Variable(0, trainable=False, dtype=tf.int64, name="epoch")
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model, epoch=epoch)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            per_example_loss = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, predictions)
        return loss

    def test_step(inputs):
        images, labels = inputs
        test_loss.update_state(loss_object(labels, model(images, training=False)))

    @tf.function
    def distributed_train_step(dataset_inputs):
        per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    @tf.function
    def distributed_test_step(dataset_inputs):
        return strategy.run(test_step, args=(dataset_inputs,))

    # All workers take part in a checkpoint, and one may write to this place.
    lines, prefix = [], f"{directory if kerasdist.is_chief() else tempfile.mkdtemp()}/ckpt"
    for _ in range(2):
        total_loss, num_batches = 0.0, 0
        for batch in train_dist_dataset:
            total_loss += distributed_train_step(batch)
            num_batches += 1
        for batch in test_dist_dataset:
            distributed_test_step(batch)
        epoch.assign_add(1)
        lines.append([float(total_loss) / num_batches])
        lines[-1] += [float(train_accuracy.result()), float(test_loss.result())]
        test_loss.reset_state()
        train_accuracy.reset_state()
    path = checkpoint.save(prefix)
    saved = model.get_weights()
    distributed_train_step(next(iter(train_dist_dataset)))
    checkpoint.restore(path)
    return {
        "lines": lines,
        "saved": saved,
        "epoch": int(tf.convert_to_tensor(epoch)),
        "iterations": int(tf.convert_to_tensor(optimizer.iterations)),
        "weights": model.get_weights(),
    }
