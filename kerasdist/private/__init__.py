"""Private names of Keras and TensorFlow, with the reason why each is needed."""

from kerasdist.private import names

# Whoever needs one of them needs the others, and should hear of one error, not of a line in here.
with names.told_where_moved():
    from kerasdist.private import collectives as collectives
    from kerasdist.private import coordinator_adapter as coordinator_adapter
    from kerasdist.private import custom_parts as custom_parts
    from kerasdist.private import dataset_adapter as dataset_adapter
    from kerasdist.private import keras_fit as keras_fit
    from kerasdist.private import keras_layers as keras_layers
    from kerasdist.private import keras_losses as keras_losses
    from kerasdist.private import keras_optimizers as keras_optimizers
    from kerasdist.private import keras_routes as keras_routes
    from kerasdist.private import keras_threads as keras_threads
    from kerasdist.private import runtime as runtime
    from kerasdist.private import scopes as scopes
    from kerasdist.private import strategy_adapter as strategy_adapter
    from kerasdist.private import traced_graphs as traced_graphs
    from kerasdist.private import trial_adapter as trial_adapter
    from kerasdist.private import variable_adapter as variable_adapter
