"""Lines for the person at the terminal."""

from kerasdist.support import memory
from kerasdist.training.context.announcements import announce


def test_a_line_is_said_once_and_beside_what_the_program_prints(capsys, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())

    for line in ("Data: 2 files.", "Data: 3 files.", "Data: 2 files."):
        announce(line)

    assert capsys.readouterr() == ("", "Data: 2 files.\nData: 3 files.\n")
