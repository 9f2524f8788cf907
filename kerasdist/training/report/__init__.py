"""What a user and their callbacks see of the training."""
