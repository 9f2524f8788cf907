"""The processes of a cluster on this machine: started, guarded, watched and stopped together.

A task is a process with a log and a note; a group of tasks is one attempt of a cluster. What a
launch makes of an attempt that failed is in `kerasdist.launcher`. No TensorFlow here.
"""
