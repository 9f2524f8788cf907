"""In the manner of Keras' example of a graph network: the graph in the model, nodes as examples.

Every batch of node indices gathers from embeddings of the whole graph, made in `call`.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

NUM_NODES, NUM_EDGES, NUM_CLASSES = 40, 120, 3


def create_ffn(hidden_units, dropout_rate, synchronized):
    fnn_layers = []
    for units in hidden_units:
        fnn_layers.append(keras.layers.BatchNormalization(synchronized=synchronized))
        fnn_layers.append(keras.layers.Dropout(dropout_rate))
        fnn_layers.append(keras.layers.Dense(units, activation=keras.ops.gelu))
    return keras.Sequential(fnn_layers)


class GraphConvLayer(keras.layers.Layer):
    def __init__(self, hidden_units, dropout_rate, synchronized):
        super().__init__()
        self.ffn_prepare = create_ffn(hidden_units, dropout_rate, synchronized)
        self.update_fn = create_ffn(hidden_units, dropout_rate, synchronized)

    def call(self, inputs):
        node_representations, edges, edge_weights = inputs
        node_indices, neighbour_indices = edges[0], edges[1]
        neighbour_repesentations = keras.ops.take(node_representations, neighbour_indices, axis=0)
        messages = self.ffn_prepare(neighbour_repesentations)
        messages = messages * tf.expand_dims(edge_weights, -1)
        aggregated = tf.math.unsorted_segment_sum(messages, node_indices, num_segments=NUM_NODES)
        h = keras.ops.concatenate([node_representations, aggregated], axis=1)
        return keras.ops.normalize(self.update_fn(h), axis=-1)


class GNNNodeClassifier(keras.Model):
    def __init__(self, graph_info, num_classes, hidden_units, dropout_rate, synchronized):
        super().__init__()
        node_features, edges, edge_weights = graph_info
        self.node_features = node_features
        self.edges = edges
        self.edge_weights = edge_weights / keras.ops.sum(edge_weights)
        self.preprocess = create_ffn(hidden_units, dropout_rate, synchronized)
        self.conv1 = GraphConvLayer(hidden_units, dropout_rate, synchronized)
        self.compute_logits = keras.layers.Dense(units=num_classes, name="logits")

    def call(self, input_node_indices):
        x = self.preprocess(self.node_features)
        x1 = self.conv1((x, self.edges, self.edge_weights))
        x = x1 + x
        node_embeddings = keras.ops.take(x, input_node_indices, axis=0)
        return self.compute_logits(node_embeddings)


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(43)
    rng = np.random.default_rng(0)
    node_features = rng.normal(size=(NUM_NODES, 6)).astype("float32")
    edges = rng.integers(0, NUM_NODES, size=(2, NUM_EDGES))
    y = (node_features[:, 0] * 3).astype(int) % NUM_CLASSES
    graph_info = (tf.cast(node_features, tf.float32), edges, keras.ops.ones(shape=NUM_EDGES))
    train_indices, test_indices = np.arange(NUM_NODES)[:29], np.arange(NUM_NODES)[29:]
    with scope(strategy):
        gnn_model = GNNNodeClassifier(
            graph_info, NUM_CLASSES, [8, 8], 0.0 if comparable else 0.2, comparable
        )
        gnn_model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
        )
        logits = keras.ops.convert_to_numpy(gnn_model(np.array([1, 10, 20])))
    early_stopping = keras.callbacks.EarlyStopping(
        monitor="val_acc", patience=5, restore_best_weights=True
    )
    history = gnn_model.fit(
        x=train_indices,
        y=y[:29],
        epochs=3,
        batch_size=8,
        validation_split=0.15,
        callbacks=[early_stopping],
    )
    _, test_accuracy = gnn_model.evaluate(x=test_indices, y=y[29:], verbose=0)
    return {
        "logits": logits,
        "history": history.history,
        "accuracy": test_accuracy,
        "weights": gnn_model.get_weights(),
    }
