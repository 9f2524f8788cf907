"""Whether a program gives, divided over replicas, what one device gives; and what if not."""
