"""Which datasets read files, and which transformations need all of them."""

import pytest
import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.data.transformations import Transformations


def records(**kwargs):
    return tf.data.TFRecordDataset(["a", "b"], **kwargs)


def headless(path):
    return tf.data.TextLineDataset(path).skip(1)


def len_of(line):
    return tf.strings.length(line)


def is_text(line):
    return line != ""


# Of the names of the files, or of their lines.
OF_A_PART = {
    "records": lambda files, lines: records().batch(2),
    "read in parallel": lambda files, lines: records(num_parallel_reads=2).batch(2),
    "a cache in memory": lambda files, lines: lines.map(len_of).cache().shuffle(9).prefetch(1),
    "shuffled files": lambda files, lines: files.shuffle(2).interleave(headless),
    "in parallel": lambda files, lines: files.interleave(headless, num_parallel_calls=2),
    "parsed in batches": lambda files, lines: lines.batch(9).map(len_of).unbatch().padded_batch(3),
    "filtered": lambda files, lines: lines.filter(is_text).batch(2, num_parallel_calls=2),
    "with options": lambda files, lines: lines.batch(2).with_options(tf.data.Options()),
}
OF_WHOLE_DATA = {
    "take": lambda lines: lines.take(3).batch(2),
    "skip": lambda lines: lines.batch(2).skip(1),
    "repeat": lambda lines: lines.batch(2).repeat(),
    "shard": lambda lines: lines.shard(2, 0),
    "window": lambda lines: lines.window(2).flat_map(lambda window: window.batch(2)),
    "scan": lambda lines: lines.scan(0, lambda count, line: (count + 1, line)),
    "take_while": lambda lines: lines.take_while(is_text),
    "group_by_window": lambda lines: lines.bucket_by_sequence_length(len_of, [3], [2, 2]),
    "assert_cardinality": lambda lines: lines.apply(tf.data.experimental.assert_cardinality(2)),
    "cache(filename)": lambda lines: lines.cache("name").batch(2),
    "batch(drop_remainder=True)": lambda lines: lines.batch(2, True, num_parallel_calls=2),
    "padded_batch(drop_remainder=True)": lambda lines: lines.padded_batch(2, drop_remainder=True),
}
OF_NO_FILES = {
    "paths that a function reads": lambda files: files.map(tf.io.read_file),
    "texts": lambda files: files.batch(2),
    "numbers": lambda files: files.flat_map(lambda text: tf.data.Dataset.range(2)),
}


@pytest.fixture
def files():
    return tf.data.Dataset.from_tensor_slices(["a", "b"])


@pytest.fixture
def lines(files):
    return files.interleave(tf.data.TextLineDataset)


def of(dataset):
    definition = dataset_adapter.definition_of(dataset)
    assert definition
    return Transformations(definition)


@pytest.mark.parametrize("name", OF_A_PART)
def test_what_looks_at_each_example_alone_fits_a_part_of_the_files(name, files, lines):
    transformations = of(OF_A_PART[name](files, lines))

    assert transformations.read_files
    assert transformations.of_whole_data is None


@pytest.mark.parametrize("name", OF_WHOLE_DATA)
def test_what_counts_or_compares_examples_needs_all_files(name, lines):
    transformations = of(OF_WHOLE_DATA[name](lines))

    assert transformations.read_files
    assert transformations.of_whole_data == name


def test_the_last_one_of_several_is_named(lines):
    assert of(lines.take(3).repeat().batch(2)).of_whole_data == "repeat"


@pytest.mark.parametrize("name", OF_NO_FILES)
def test_texts_that_no_reader_takes_are_no_files(name, files):
    assert not of(OF_NO_FILES[name](files)).read_files
