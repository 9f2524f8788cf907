"""Small tools without TensorFlow or Keras that every part may use."""
