"""The epochs of one call: what a worker takes of its data, and how a later call goes on there."""
