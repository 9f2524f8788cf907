"""The user's data: global batches, and which part of them each replica and worker takes."""
