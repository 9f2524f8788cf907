"""The function that `predict` calls for every batch."""

import tensorflow as tf

from kerasdist.training import batches, late_variables, workers
from kerasdist.training.step_function import as_tensors
from kerasdist.training.step_logs import graph_function


class PredictFunction:
    """Runs a model's predict_step over the replicas of this worker.

    Each of several workers predicts the whole data and returns all of it, so that one of them can
    call `predict` alone.

    Args:
        model: A model of one of our strategies.
    """

    def __init__(self, model):
        self._strategy = model.distribute_strategy
        self._step = model.predict_step
        if model.jit_compile and self._strategy.num_replicas_in_sync == 1:
            self._step = graph_function(model.predict_step, jit_compile=True)
        self._run = self._predict
        if not model.run_eagerly:
            self._run = graph_function(self._predict, reduce_retracing=True)

    def __call__(self, data: list):
        """Returns the outputs of a list of global batches as one structure of tensors."""
        outputs = [self._run(as_tensors(batch)) for batch in data]
        return outputs[0] if len(outputs) == 1 else joined(*outputs)

    def _predict(self, batch):
        replicas = workers.local_replicas(self._strategy)
        shares = batches.local_shares_of(batch, self._strategy)

        def replica_fn():
            return self._step(shares[workers.replica_id() - replicas[0]])

        with late_variables.made_at_once(self._strategy):
            outputs = self._strategy.run(replica_fn)
        return joined(*self._strategy.experimental_local_results(outputs))


def joined(*structures):
    """Returns structures of tensors, joined along their first axis."""
    if len(structures) == 1:
        return structures[0]
    return tf.nest.map_structure(lambda *parts: _concat(parts), *structures)


def _concat(parts):
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(parts))
    return tf.concat(parts, axis=0)
