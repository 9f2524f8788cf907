"""Private names of Keras and TensorFlow, with the reason why each is needed."""

from kerasdist.private import names

# Whoever needs one of them needs the others, and should hear of one error, not of a line in here.
with names.told_where_moved():
    from kerasdist.private import coordinator_adapter as coordinator_adapter
    from kerasdist.private import custom_parts as custom_parts
    from kerasdist.private import dataset_adapter as dataset_adapter
    from kerasdist.private import keras_adapter as keras_adapter
    from kerasdist.private import keras_optimizers as keras_optimizers
    from kerasdist.private import keras_routes as keras_routes
    from kerasdist.private import service_adapter as service_adapter
    from kerasdist.private import tensorflow_adapter as tensorflow_adapter
    from kerasdist.private import trial_adapter as trial_adapter
    from kerasdist.private import worker_variables as worker_variables
