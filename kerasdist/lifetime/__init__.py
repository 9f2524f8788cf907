"""How the tasks of a job end together: who has failed, who is silent, and with what exit code."""
