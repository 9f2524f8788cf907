"""Lines of JSON between the processes of a job, before TensorFlow connects them."""
