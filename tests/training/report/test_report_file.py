"""Files that callbacks write."""

from kerasdist.training.report import report_file


def test_the_folder_is_created_and_an_earlier_file_replaced(tmp_path):
    path = tmp_path / "runs" / "1" / "trace.json"
    for content in (b"first", b"2nd"):
        report_file.write(str(path), content)

    assert path.read_bytes() == b"2nd"
