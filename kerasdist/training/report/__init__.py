"""What a person and their callbacks see of training."""
