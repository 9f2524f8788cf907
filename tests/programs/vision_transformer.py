"""In the manner of Keras' example of a vision transformer: patches, positions, AdamW.

Augmentation in the model with an adapted normalization, top-k accuracy, checkpoints of the weights.
"""

import keras
import numpy as np

from tests.programs.scope import epsilon, scope

IMAGE_SIZE, PATCH_SIZE, DIM = 8, 4, 8
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2


class Patches(keras.layers.Layer):
    def __init__(self, patch_size):
        super().__init__()
        self.patch_size = patch_size

    def call(self, images):
        batch_size, _, _, channels = keras.ops.shape(images)
        patches = keras.ops.image.extract_patches(images, size=self.patch_size)
        shape = (batch_size, NUM_PATCHES, self.patch_size * self.patch_size * channels)
        return keras.ops.reshape(patches, shape)


class PatchEncoder(keras.layers.Layer):
    def __init__(self, num_patches, projection_dim):
        super().__init__()
        self.num_patches = num_patches
        self.projection = keras.layers.Dense(units=projection_dim)
        self.position_embedding = keras.layers.Embedding(
            input_dim=num_patches, output_dim=projection_dim
        )

    def call(self, patch):
        positions = keras.ops.expand_dims(
            keras.ops.arange(start=0, stop=self.num_patches, step=1), axis=0
        )
        return self.projection(patch) + self.position_embedding(positions)


def mlp(x, hidden_units, dropout_rate):
    for units in hidden_units:
        x = keras.layers.Dense(units, activation=keras.activations.gelu)(x)
        x = keras.layers.Dropout(dropout_rate)(x)
    return x


def create_vit_classifier(data_augmentation, dropout):
    inputs = keras.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 3))
    augmented = data_augmentation(inputs)
    encoded_patches = PatchEncoder(NUM_PATCHES, DIM)(Patches(PATCH_SIZE)(augmented))
    x1 = keras.layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
    attention_output = keras.layers.MultiHeadAttention(num_heads=2, key_dim=DIM, dropout=dropout)(
        x1, x1
    )
    x2 = keras.layers.Add()([attention_output, encoded_patches])
    x3 = mlp(keras.layers.LayerNormalization(epsilon=1e-6)(x2), [16, DIM], dropout)
    representation = keras.layers.Flatten()(keras.layers.Add()([x3, x2]))
    features = mlp(representation, [8], dropout)
    return keras.Model(inputs=inputs, outputs=keras.layers.Dense(4)(features))


def run(strategy, *, comparable=False, directory):
    keras.utils.set_random_seed(36)
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, size=(53, IMAGE_SIZE, IMAGE_SIZE, 3)).astype("float32")
    y = rng.integers(0, 4, size=(53, 1))
    x_train, y_train, x_test, y_test = x[:41], y[:41], x[41:], y[41:]
    with scope(strategy):
        augmentation = [keras.layers.Normalization()]
        if not comparable:
            augmentation += [
                keras.layers.RandomFlip("horizontal"),
                keras.layers.RandomRotation(factor=0.02),
                keras.layers.RandomZoom(height_factor=0.2, width_factor=0.2),
            ]
        data_augmentation = keras.Sequential(augmentation, name="data_augmentation")
        data_augmentation.layers[0].adapt(x_train)
        model = create_vit_classifier(data_augmentation, 0.0 if comparable else 0.1)
        model.compile(
            optimizer=keras.optimizers.AdamW(
                learning_rate=0.001, weight_decay=0.0001, epsilon=epsilon(comparable)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[
                keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
                keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
            ],
        )
    checkpoint_filepath = f"{directory}/checkpoint.weights.h5"
    checkpoint_callback = keras.callbacks.ModelCheckpoint(
        checkpoint_filepath, monitor="val_accuracy", save_best_only=True, save_weights_only=True
    )
    history = model.fit(
        x=x_train,
        y=y_train,
        batch_size=8,
        epochs=2,
        validation_split=0.1,
        callbacks=[checkpoint_callback],
    )
    model.load_weights(checkpoint_filepath)
    _, accuracy, top_accuracy = model.evaluate(x_test, y_test)
    return {
        "history": history.history,
        "accuracy": [accuracy, top_accuracy],
        "weights": model.get_weights(),
    }
