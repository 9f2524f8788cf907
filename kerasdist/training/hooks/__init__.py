"""What callbacks, plans and the doctor may ask of a training, and what they may change in it."""
