"""Steps, data and variables over parameter servers; files are named after their counterparts.

The chief traces all graphs and schedules them; workers run them and wait for nobody.

1. `epoch_iterator` cuts an epoch into calls of some steps in a row. `step_function`, which `fit`
   calls, keeps four of them per worker on their way (`call_runner`), and answers with the oldest.
2. A worker runs a graph of `worker_steps`: it reads the batches at the positions of its call
   (`data_source`), and makes steps as one device does. It reads small weights as copies, fetched in
   one message per server (`local_copies`).
3. `delivery` sends the gradients to the servers of their variables (`sharded_variables`), where the
   optimizer's update runs, and each server first notes call, step and update in the `ledger`.
4. Metrics that only add (`sums`) are counted on the worker, and added at the end of the call, with
   a note as well (`local_counts`).
5. If a worker is lost, the ledger closes its call: nothing of it counts from then on. What the
   notes lack is made by another worker (`CallRunner.settle`): each example counts once.

Updates are counted on a server (`optimizer.iterations`), steps of `fit` by the chief (`Calls`).
`worker_times` measures, `predict_function` predicts, and `abandonment` cleans up after an error.
"""
