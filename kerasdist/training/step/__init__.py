"""One step over the replicas: losses, gradients, statistics, random numbers and logs."""
