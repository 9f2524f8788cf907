"""In the manner of reinforcement learning: batches of 1, train_on_batch, a target network.

The agent predicts the values of one state at a time, learns from a replay buffer whose batches grow
from 1 example, and copies its weights to the target with set_weights.
"""

import keras
import numpy as np

from tests.programs.scope import scope

NUM_ACTIONS = 3


def make_q_network():
    model = keras.Sequential(
        [
            keras.layers.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(NUM_ACTIONS, activation="linear"),
        ]
    )
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(learning_rate=0.01), metrics=["mae"])
    return model


class Environment:
    """States that the actions change, with a reward for the right one."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.state = self.rng.uniform(size=(6, 6, 2))

    def step(self, action):
        reward = float(self.state[action, action, 0])
        self.state = np.clip(self.state + self.rng.normal(size=(6, 6, 2)) * (action + 1) / 9, 0, 1)
        return self.state, reward


def run(strategy):
    keras.utils.set_random_seed(19)
    rng = np.random.default_rng(1)
    with scope(strategy):
        model = make_q_network()
        model_target = make_q_network()
    model_target.set_weights(model.get_weights())
    environment, memory = Environment(), []
    state, losses, values = environment.state, [], []
    for frame in range(12):
        q_values = model.predict(state[np.newaxis], verbose=0)
        values.append(q_values)
        # The same state without a call of `predict`.
        action_probs = model(keras.ops.expand_dims(state, 0), training=False)
        explore = rng.random() < 0.3
        action = int(rng.integers(NUM_ACTIONS)) if explore else int(np.argmax(action_probs[0]))
        state_next, reward = environment.step(action)
        memory.append((state, action, reward, state_next))
        state = state_next

        batch = [memory[i] for i in rng.permutation(len(memory))[:5]]
        states = np.array([each[0] for each in batch])
        states_next = np.array([each[3] for each in batch])
        future_rewards = model_target.predict_on_batch(states_next)
        targets = np.array(model.predict_on_batch(states))
        for row, (_, action, reward, _) in enumerate(batch):
            targets[row, action] = reward + 0.9 * np.max(future_rewards[row])
        losses.append(model.train_on_batch(states, targets))
        if frame % 5 == 4:
            model_target.set_weights(model.get_weights())
    logs = model.test_on_batch(states[:1], targets[:1], return_dict=True)
    return {
        "losses": losses,
        "values": values,
        "logs": logs,
        "weights": model.get_weights(),
        "target": model_target.get_weights(),
    }
