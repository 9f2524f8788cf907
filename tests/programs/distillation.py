"""In the manner of Keras' example of distillation: a frozen teacher, `compute_loss` overridden."""

import keras
import numpy as np

from tests.programs.scope import scope


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            keras.ops.softmax(teacher_pred / self.temperature, axis=1),
            keras.ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def make_network(filters, name):
    return keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            keras.layers.Conv2D(filters, (3, 3), strides=(2, 2), padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.MaxPooling2D(pool_size=(2, 2), strides=(1, 1), padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ],
        name=name,
    )


def compile_alone(model):
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )


def run(strategy):
    keras.utils.set_random_seed(32)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(53, 8, 8, 1)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) * 30).astype(int) % 3
    x_train, y_train, x_test, y_test = x[:37], y[:37], x[37:], y[37:]
    with scope(strategy):
        teacher = make_network(8, "teacher")
        student = make_network(4, "student")
        student_scratch = keras.models.clone_model(student)
        compile_alone(teacher)
    histories = [teacher.fit(x_train, y_train, epochs=2, batch_size=8).history]
    scores = [teacher.evaluate(x_test, y_test)]

    with scope(strategy):
        distiller = Distiller(student=student, teacher=teacher)
        distiller.compile(
            optimizer=keras.optimizers.Adam(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            distillation_loss_fn=keras.losses.KLDivergence(),
            alpha=0.1,
            temperature=10,
        )
    histories.append(distiller.fit(x_train, y_train, epochs=3, batch_size=8).history)
    scores.append(distiller.evaluate(x_test, y_test))

    with scope(strategy):
        compile_alone(student_scratch)
    histories.append(student_scratch.fit(x_train, y_train, epochs=1, batch_size=8).history)
    scores.append(student_scratch.evaluate(x_test, y_test))
    return {
        "histories": histories,
        "scores": scores,
        "weights": [each.get_weights() for each in (distiller, student_scratch)],
    }
