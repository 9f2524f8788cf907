"""In the manner of Keras' examples of structured data: FeatureSpace, and a wide and deep model."""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import epsilon, scope


def dataframe(num_examples):
    rng = np.random.default_rng(0)
    features = {
        "sex": rng.integers(0, 2, size=num_examples),
        "thal": rng.choice(["fixed", "normal", "reversible"], size=num_examples),
        "age": rng.integers(20, 80, size=num_examples).astype("float32"),
        "chol": rng.normal(240, 40, size=num_examples).astype("float32"),
    }
    target = (features["age"] + features["sex"] * 20 > 60).astype("int64")
    return features, target


def make_feature_space():
    return keras.utils.FeatureSpace(
        features={
            "sex": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
            "thal": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
            "age": keras.utils.FeatureSpace.float_discretized(num_bins=5),
            "chol": keras.utils.FeatureSpace.float_normalized(),
        },
        crosses=[keras.utils.FeatureSpace.cross(feature_names=("sex", "age"), crossing_dim=8)],
        output_mode="concat",
    )


def make_wide_and_deep(dropout, synchronized):
    inputs = {
        "sex": keras.Input((1,), name="sex", dtype="int32"),
        "thal": keras.Input((1,), name="thal", dtype="string"),
        "age": keras.Input((1,), name="age"),
        "chol": keras.Input((1,), name="chol"),
    }
    lookup = keras.layers.StringLookup(
        vocabulary=["fixed", "normal", "reversible"], num_oov_indices=0, output_mode="int"
    )
    embedding = keras.layers.Embedding(3, 2)(lookup(inputs["thal"]))
    wide = keras.layers.CategoryEncoding(num_tokens=2, output_mode="one_hot")(inputs["sex"])
    wide = keras.layers.BatchNormalization(synchronized=synchronized)(wide)
    numbers = [inputs["age"] / 100, inputs["chol"] / 300, keras.layers.Flatten()(embedding)]
    deep = keras.layers.concatenate(numbers)
    deep = keras.layers.Dense(8)(deep)
    deep = keras.layers.BatchNormalization(synchronized=synchronized)(deep)
    deep = keras.layers.Dropout(dropout)(keras.layers.ReLU()(deep))
    outputs = keras.layers.Dense(2, activation="softmax")(keras.layers.concatenate([wide, deep]))
    return keras.Model(inputs=inputs, outputs=outputs)


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(37)
    features, target = dataframe(53)
    dataset = tf.data.Dataset.from_tensor_slices((features, target))
    # The same order for both parts. A cache would keep that of whichever pass ends first.
    dataset = dataset.shuffle(53, seed=1, reshuffle_each_iteration=False)
    val_ds, train_ds = dataset.take(16).batch(8), dataset.skip(16).batch(8)
    with scope(strategy):
        feature_space = make_feature_space()
        feature_space.adapt(train_ds.map(lambda x, _: x))

        def preprocess(x, y):
            return feature_space(x), y

        preprocessed_train_ds = train_ds.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)
        preprocessed_val_ds = val_ds.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)
        dict_inputs = feature_space.get_inputs()
        encoded_features = feature_space.get_encoded_features()
        x = keras.layers.Dense(8, activation="relu")(encoded_features)
        x = keras.layers.Dropout(0.0 if comparable else 0.5)(x)
        predictions = keras.layers.Dense(1, activation="sigmoid")(x)
        training_model = keras.Model(inputs=encoded_features, outputs=predictions)
        training_model.compile(
            optimizer=keras.optimizers.Adam(epsilon=epsilon(comparable)),
            loss="binary_crossentropy",
            metrics=["accuracy", "auc"],
        )
        inference_model = keras.Model(inputs=dict_inputs, outputs=predictions)
        wide_and_deep = make_wide_and_deep(0.0 if comparable else 0.1, synchronized=comparable)
        wide_and_deep.compile(
            optimizer=keras.optimizers.Adam(learning_rate=0.001, epsilon=epsilon(comparable)),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = training_model.fit(
        preprocessed_train_ds.prefetch(tf.data.AUTOTUNE),
        epochs=2,
        validation_data=preprocessed_val_ds.prefetch(tf.data.AUTOTUNE),
        verbose=2,
    )
    sample = {"sex": 1, "thal": "fixed", "age": 60.0, "chol": 233.0}
    input_dict = {name: tf.convert_to_tensor([value]) for name, value in sample.items()}
    deep = wide_and_deep.fit(train_ds, epochs=2, validation_data=val_ds)
    return {
        "histories": [history.history, deep.history],
        "prediction": inference_model.predict(input_dict),
        "weights": [training_model.get_weights(), wide_and_deep.get_weights()],
    }
