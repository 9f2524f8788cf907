"""Private names of Keras and TensorFlow, with the reason why each is needed."""
