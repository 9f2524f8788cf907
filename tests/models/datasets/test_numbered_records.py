"""In which order stored records come, and with which numbers."""

import pytest
import tensorflow as tf

from models.datasets.dataset import Dataset, FilePart

SIZES = (3, 1, 4, 2)
NUM_RECORDS = sum(SIZES)


@pytest.fixture
def dataset(tmp_path):
    """Record i of the split is the text of i; each file begins with a record of no split."""
    parts, number = [], 0
    for index, size in enumerate(SIZES):
        path = str(tmp_path / str(index))
        writer = tf.io.TFRecordWriter(path)
        for record in (-1, *range(number, number + size)):
            writer.write(str(record).encode())
        writer.close()
        number += size
        parts.append(FilePart(path, 1, size))
    return Dataset(
        records=parts,
        read=lambda record: (record, tf.strings.to_number(record, tf.int64)),
        num_examples=NUM_RECORDS,
        label_names=("a",),
        channels=1,
        split_names=("train",),
    )


def numbers(records):
    found = [(int(number), int(record)) for number, record in records.as_numpy_iterator()]
    assert all(number == record for number, record in found)
    return [number for number, _ in found]


def test_records_are_numbered_in_the_stored_order(dataset):
    assert numbers(dataset.numbered_records()) == list(range(NUM_RECORDS))
    assert [int(label) for _, label in dataset.examples] == list(range(NUM_RECORDS))


def test_readers_take_turns_between_files_and_keep_the_numbers(dataset):
    read = numbers(dataset.numbered_records(num_readers=2))

    assert read[:3] == [0, 3, 1]  # Of the first two files.
    assert sorted(read) == list(range(NUM_RECORDS))


def test_files_come_in_an_order_of_their_own_in_each_epoch_which_the_seed_decides(dataset):
    def epochs(seed):
        records = dataset.numbered_records(num_readers=2, seed=seed)
        return [numbers(records) for _ in range(3)]

    assert epochs(1) == epochs(1) != epochs(2)
    assert len(set(map(tuple, epochs(1)))) > 1
    assert all(sorted(each) == list(range(NUM_RECORDS)) for each in epochs(1))
