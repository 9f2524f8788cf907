"""What updates of synchronous workers over parameter servers cost, and what backups save.

    python benchmarks/sync_replicas.py                   # about ten minutes
    python benchmarks/sync_replicas.py --part loop

Processes of this machine, one parameter server. All that is compared runs in turn.

`loop` compares `fit` of two workers, both in each update, with loops written by hand: workers get
tokens from a queue, and hand their gradients to accumulators (`ResourceConditionalAccumulator`), as
SyncReplicasOptimizer did, in functions that a ClusterCoordinator schedules. One has an accumulator
for each weight, the other reads all weights and sends all gradients as one tensor.
`mirrored` compares it with MultiWorkerMirroredStrategy on two workers. `straggler` lets one of
three workers take ten times as long, of which an update takes two. `messages` counts what tasks ask
of each other, in TensorFlow's own log.
"""

import argparse
import contextlib
import functools
import io
import os
import re
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved

from kerasdist import testing

BATCH_SIZE, UNITS = 64, 64
# Updates of a short and a long run, by updates per call: the difference is free of the start.
LENGTHS = {1: (50, 350), 20: (100, 700)}
SECS, SLOW_SECS = 0.05, 0.5
_PS = "/job:ps/replica:0/task:0/device:CPU:0"
# Lets TensorFlow write a line for each message: a tensor that a task asks for, or a function.
_LOGGED = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_CPP_VMODULE": "grpc_remote_worker=1,eager_service_impl=3",
}
_MESSAGE = re.compile("RecvTensorAsync req|Calling EagerLocalExecuteAsync")


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parts = {
        "loop": against_loops,
        "mirrored": against_mirrored,
        "straggler": with_straggler,
        "messages": messages,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=parts, help="default: all")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", default="sync_replicas.json")
    flags = parser.parse_args()
    chosen = [flags.part] if flags.part else list(parts)
    interleaved.write(flags.output, **{part: parts[part](flags.rounds) for part in chosen})


def against_loops(rounds: int) -> dict:
    """Compares `fit` with loops written by hand, in one cluster for each number of updates."""
    found = {}
    for updates_per_call in LENGTHS:
        print(
            f"\nK={updates_per_call}: time / loop with one tensor (below 1 is faster)", flush=True
        )
        run = functools.partial(_compare, updates_per_call, rounds)
        ratios, found[f"K={updates_per_call}"] = _of_chief(run, num_workers=2)
        print(*ratios, sep="\n", flush=True)
    return found


def against_mirrored(rounds: int) -> dict:
    """Compares it with workers without parameter servers, in clusters that take turns."""
    print("\nTwo workers: milliseconds of an update", flush=True)
    arms = {
        f"{name}, K={updates_per_call}": functools.partial(secs, updates_per_call)
        for updates_per_call in LENGTHS
        for name, secs in (("mirrored", _secs_mirrored), ("synchronous ps", _secs_of_servers))
    }
    return _in_turn(arms, max(2, rounds // 3))


def with_straggler(rounds: int) -> dict:
    """Compares three workers of which one is ten times slower, without backups and with one."""
    print(f"\nSteps of {SECS} s; one worker of three takes {SLOW_SECS} s", flush=True)
    return _in_turn(
        {
            "2 workers, none slow": functools.partial(_secs_sleeping, 2, 2, False),
            "1 backup": functools.partial(_secs_sleeping, 3, 2, True),
            "no backup": functools.partial(_secs_sleeping, 3, 3, True),
            "mirrored": functools.partial(_secs_sleeping_mirrored, 3),
        },
        max(2, rounds // 4),
    )


def messages(_: int) -> dict:
    """Counts the messages of an update, two workers."""
    print("\nMessages of an update, two workers: requests for a tensor, or to run a function")
    counts = {}
    for name, make in (("loop with one tensor", _packed_loop), ("fit", _fit)):
        counts[name] = _messages_of(make)
        print(f"  {name}: {counts[name]:.1f}", flush=True)
    return counts


def _in_turn(arms: dict, rounds: int) -> dict:
    times = {arm: [] for arm in arms}
    for index in range(rounds):
        for arm in list(arms) if index % 2 == 0 else list(arms)[::-1]:
            times[arm].append(arms[arm]() * 1e6)
    for arm, of_arm in times.items():
        print(interleaved.ratio_of(arm, of_arm, times[next(iter(arms))]), flush=True)
    return times


def _messages_of(make) -> float:
    """Returns how many more a long run has than a short one, by update."""
    short, long = LENGTHS[20]
    with _environment(_LOGGED):
        few, many = (
            sum(
                len(_MESSAGE.findall(output.output))
                for output in _outputs(functools.partial(_run_once, make, num_updates))
            )
            for num_updates in (short, long)
        )
    return (many - few) / (long - short)


@contextlib.contextmanager
def _environment(values: dict):
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _of_chief(function, **cluster):
    return _outputs(function, **cluster)[0].value


def _outputs(function, *, num_workers=2, num_ps=1):
    outputs = testing.run_cluster(
        function, num_workers=num_workers, num_ps=num_ps, timeout_secs=900
    )
    if any(output.exit_code for output in outputs):
        raise SystemExit("\n".join(f"{each.task}: {each.output[-2000:]}" for each in outputs))
    return outputs


def _strategy(updates_per_call, num_to_aggregate=2, num_workers=2):
    import kerasdist

    return kerasdist.make_strategy(
        kerasdist.DeploymentConfig(
            num_replicas=num_workers,
            num_ps_tasks=1,
            sync_replicas=True,
            replicas_to_aggregate=num_to_aggregate,
        ),
        steps_per_call=updates_per_call,
    )


def _compare(updates_per_call, rounds):
    strategy = _strategy(updates_per_call)
    arms = {
        "loop, one tensor": _packed_loop(strategy, updates_per_call),
        "the same again (A/A)": _packed_loop(strategy, updates_per_call),
        "loop, each weight": _loop(strategy, updates_per_call),
        "fit": _fit(strategy, updates_per_call),
    }
    short, long = LENGTHS[updates_per_call]
    return interleaved.compare(arms, rounds=rounds, short=short, long=long)


def _run_once(make, num_updates):
    make(_strategy(20), 20)(num_updates)


def _secs_of_servers(updates_per_call) -> float:
    return _of_chief(functools.partial(_run_servers, updates_per_call))


def _run_servers(updates_per_call) -> float:
    return _secs_of_update(_fit(_strategy(updates_per_call), updates_per_call), updates_per_call)


def _secs_mirrored(updates_per_call) -> float:
    return _of_chief(functools.partial(_run_mirrored, updates_per_call), num_ps=0)


def _run_mirrored(updates_per_call) -> float:
    return _secs_of_update(_fit_mirrored(updates_per_call), updates_per_call)


def _secs_of_update(run, updates_per_call) -> float:
    short, long = LENGTHS[updates_per_call]
    run(short)
    times = []
    for num_updates in (short, long):
        begun_at = time.perf_counter()
        run(num_updates)
        times.append(time.perf_counter() - begun_at)
    return (times[1] - times[0]) / (long - short)


def _secs_sleeping(num_workers, num_to_aggregate, is_one_slow) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = functools.partial(_run_sleeping, folder, num_workers, num_to_aggregate, is_one_slow)
        return _of_chief(run, num_workers=num_workers)


def _run_sleeping(folder, num_workers, num_to_aggregate, is_one_slow) -> float:
    import sleeping

    sleeping.enter(folder)
    strategy = _strategy(1, num_to_aggregate, num_workers)
    run = _fit(strategy, 1, [sleeping.Sleeps()], num_to_aggregate)
    run(5)
    _set_paces(folder, num_workers, is_one_slow)
    return _secs_of_sleeping(run)


def _secs_sleeping_mirrored(num_workers) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = functools.partial(_run_sleeping_mirrored, folder, num_workers)
        return _of_chief(run, num_workers=num_workers, num_ps=0)


def _run_sleeping_mirrored(folder, num_workers) -> float:
    import sleeping

    sleeping.enter(folder)
    run = _fit_mirrored(1, [sleeping.Sleeps()], num_workers)
    run(5)
    _set_paces(folder, num_workers, True)
    return _secs_of_sleeping(run)


def _set_paces(folder, num_workers, is_one_slow):
    import sleeping

    for worker in range(num_workers):
        is_slow = is_one_slow and worker == num_workers - 1
        sleeping.set_pace(folder, worker=worker, secs=SLOW_SECS if is_slow else SECS)


def _secs_of_sleeping(run) -> float:
    """Returns the seconds of an update, the end of an epoch included."""
    times = []
    for num_updates in (10, 30):
        begun_at = time.perf_counter()
        run(num_updates)
        times.append(time.perf_counter() - begun_at)
    return (times[1] - times[0]) / 20


def _model(strategy, layers=(), **compile_arguments):
    import networks

    first, *others = networks.dense(UNITS)
    return networks.make_model(
        strategy, [first, *layers, *others], metrics=["accuracy"], **compile_arguments
    )


def _fit(strategy, _, layers=(), num_to_aggregate=2):
    import networks

    model = _model(strategy, layers)
    data = networks.dataset(BATCH_SIZE)

    def run(num_updates):
        with contextlib.redirect_stdout(io.StringIO()):  # The bar is drawn, and not seen.
            model.fit(data.take(num_updates * num_to_aggregate), verbose=1)

    return run


def _fit_mirrored(updates_per_call, layers=(), num_workers=2):
    import networks

    import kerasdist

    strategy = kerasdist.make_strategy()
    model = _model(strategy, layers, steps_per_execution=updates_per_call)
    data = networks.dataset(num_workers * BATCH_SIZE)

    def run(num_updates):
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(data.take(num_updates), verbose=1)

    return run


def _loop(strategy, updates_per_call):
    """Returns a loop as SyncReplicasOptimizer was: an accumulator for each weight."""
    import tensorflow as tf

    model = _built(strategy)

    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(model.loss(y, logits))
        return tape.gradient(loss, model.trainable_variables), loss, logits

    def update(means):
        model.optimizer.apply(means, model.trainable_variables)

    shapes = [variable.shape for variable in model.trainable_variables]
    return _accumulating(strategy, updates_per_call, shapes, gradients_of, update)


def _packed_loop(strategy, updates_per_call):
    """Returns a loop that sends all weights, and all gradients, as one tensor."""
    import tensorflow as tf

    model = _built(strategy)
    sizes = [variable.value.shape.num_elements() for variable in model.trainable_variables]

    def split(packed):
        parts = zip(tf.split(packed, sizes), model.trainable_variables, strict=True)
        return [tf.reshape(part, variable.shape) for part, variable in parts]

    def gradients_of(x, y):
        with tf.device(_PS):
            values = [tf.reshape(each.value, [-1]) for each in model.trainable_variables]
            there = tf.concat(values, axis=0)
        packed = tf.identity(there)
        with tf.GradientTape() as tape:
            tape.watch(packed)
            logits, _ = model.stateless_call(split(packed), [], x, training=True)
            loss = tf.reduce_mean(model.loss(y, logits))
        return [tape.gradient(loss, packed)], loss, logits

    def update(means):
        model.optimizer.apply(split(means[0]), model.trainable_variables)

    return _accumulating(strategy, updates_per_call, [[sum(sizes)]], gradients_of, update)


def _built(strategy):
    model = _model(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return model


def _accumulating(strategy, updates_per_call, shapes, gradients_of, update):  # noqa: C901
    import networks
    import tensorflow as tf

    from kerasdist.private import coordinator_adapter

    coordinator = strategy.deployment.remote.coordinator
    name = f"loop {id(update)}"

    def accumulators():
        return [
            tf.raw_ops.ResourceConditionalAccumulator(
                dtype=tf.float32, shape=shape, shared_name=f"{name} {index}", reduction_type="MEAN"
            )
            for index, shape in enumerate(shapes)
        ]

    def tokens():
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.int64], shapes=[[]], shared_name=f"{name} tokens"
        )

    def give(step):
        tf.raw_ops.QueueEnqueueManyV2(handle=tokens(), components=[tf.fill([2], step)])

    @tf.function
    def work(iterator, num_batches):
        sums = tf.zeros([3])
        for _ in tf.range(num_batches):
            with tf.device(_PS):
                (step,) = tf.raw_ops.QueueDequeueV2(handle=tokens(), component_types=[tf.int64])
            x, y = next(iterator)
            with tf.control_dependencies([step]):
                gradients, loss, logits = gradients_of(x, y)
            with tf.device(_PS):
                for accumulator, gradient in zip(accumulators(), gradients, strict=True):
                    tf.raw_ops.ResourceAccumulatorApplyGradient(
                        handle=accumulator, local_step=step, gradient=gradient
                    )
            right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, -1), y), tf.float32))
            count = tf.cast(tf.shape(y)[0], tf.float32)
            sums += tf.stack([count * loss, right, count])
        return sums

    def take_and_update():
        before = len(tf.compat.v1.get_default_graph().get_operations())
        means = [
            tf.raw_ops.ResourceAccumulatorTakeGradient(
                handle=accumulator, num_required=2, dtype=tf.float32
            )
            for accumulator in accumulators()
        ]
        update([tf.ensure_shape(*each) for each in zip(means, shapes, strict=True)])
        made = tf.compat.v1.get_default_graph().get_operations()[before:]
        return [each for each in made if each.op_def.is_stateful]

    @tf.function
    def updates(first):
        with tf.device(_PS):
            for index in tf.range(updates_per_call):
                # Tokens for the next update wait for all of this one.
                with tf.control_dependencies(take_and_update()):
                    give(first + tf.cast(index, tf.int64) + 1)

    made = 0
    with tf.device(_PS):
        give(tf.constant(0, tf.int64))
    iterator = iter(coordinator.create_per_worker_dataset(networks.dataset(BATCH_SIZE)))
    # Workers cannot learn a function while the server waits for them; after some, both have it.
    for _ in range(3):
        for _ in range(20):
            coordinator.schedule(work, args=(iterator, tf.constant(0)))
        coordinator.join()

    def run(num_updates):
        nonlocal made
        num_calls, number = num_updates // updates_per_call, tf.constant(updates_per_call)
        counted = [
            coordinator.schedule(work, args=(iterator, number)) for _ in range(2 * num_calls)
        ]
        with strategy.scope(), tf.device(_PS), coordinator_adapter.apart_from_others():
            for _ in range(num_calls):
                updates(tf.constant(made, tf.int64))
                made += updates_per_call
        coordinator.join()
        sum(each.fetch() for each in counted)

    return run


if __name__ == "__main__":
    main()
