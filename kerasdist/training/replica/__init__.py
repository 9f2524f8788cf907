"""What one replica knows while it computes a step, and what it has from the others."""
