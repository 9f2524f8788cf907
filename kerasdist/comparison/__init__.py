"""Two runs of a program, compared step by step: where they first differ, by how much, and why."""
