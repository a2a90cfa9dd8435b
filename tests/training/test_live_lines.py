"""The connections of a process group, watched and cut, and what comes of new ones, on the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import threading

from proving_ground.training.recovery.lines import Lines, answers, knocks


def test_cut_lines_end_at_both_ends_at_once() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    older = socket.create_connection(server.getsockname())
    older_end, _ = server.accept()
    lines = Lines()
    with lines.watching(("127.0.0.1",)):
        line = socket.create_connection(server.getsockname())
        end, _ = server.accept()
    waiting = threading.Thread(target=line.recv, args=(1,))  # an operation under way keeps the connection open
    waiting.start()
    assert not lines.ended()
    lines.cut()
    waiting.join(60)
    assert not waiting.is_alive(), "it hangs"
    end.settimeout(60)
    assert end.recv(1) == b""
    older.send(b"x")
    assert older_end.recv(1) == b"x", "what was there before is none of ours"
    for one in (server, older, older_end, line, end):
        one.close()


def test_a_kernel_answers_for_a_closed_port_and_is_missed_where_packets_are_dropped() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = server.getsockname()
        assert answers(*place)
        with contextlib.ExitStack() as waiting:
            for _ in range(4):  # of a full queue the kernel drops what comes
                one = waiting.enter_context(socket.socket())
                one.settimeout(0)
                one.connect_ex(place)
            assert not answers(*place)
            assert knocks([place]) == ["silent"]
    assert answers(*place), "nobody listens, and the way is open"
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert knocks([place, server.getsockname()]) == ["refused", "open"]
    assert knocks([]) == []
