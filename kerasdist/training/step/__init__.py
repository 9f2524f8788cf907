"""One step over the replicas: its graphs, loops and logs."""
