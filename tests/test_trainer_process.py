"""The edge of a rank's process: one code, said to the others first, whichever thread ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_latest_word_is_said_first_and_one_that_fails_stops_nothing():
    done = run(
        """
        from configs.words import Exit
        from trainer.process import Leaver
        leaver = Leaver()
        leaver.before(lambda code, reason: print("first", int(code), reason))
        def fails(code, reason):
            raise OSError("broken")
        leaver.before(fails)
        leaver.before(lambda code, reason: print("last", int(code), reason))
        leaver.leave(Exit.CHECKPOINT, "disk full")
        """
    )
    assert done.returncode == 6
    assert done.stdout.splitlines() == ["last 6 disk full", "first 6 disk full"]
    assert "while leaving: OSError('broken')" in done.stderr


def test_first_thread_that_leaves_decides_the_code():
    done = run(
        """
        import threading
        from configs.words import Exit
        from trainer.process import Leaver
        leaver = Leaver()
        def word(code, reason):
            if code is Exit.DONE:
                return  # the second would be gone at once
            second = threading.Thread(target=leaver.leave, args=(Exit.DONE, "second"))
            second.start()
            second.join(0.3)
            print("second waits:", second.is_alive())
        leaver.before(word)
        leaver.leave(Exit.INCARNATION_OVER, "first")
        """
    )
    assert done.returncode == 7
    assert done.stdout == "second waits: True\n"


def test_process_ends_although_a_thread_hangs():
    """An abandoned collective must not hold the exit for its whole timeout."""
    done = run(
        """
        import threading
        from configs.words import Exit
        from trainer.process import Leaver
        threading.Thread(target=threading.Event().wait).start()
        Leaver().leave(Exit.DRAINED, "")
        """
    )
    assert done.returncode == 75


def test_sigterm_asks_for_a_drain_and_sigint_is_not_ours():
    done = run(
        """
        import os, signal
        from trainer.process import on_terminate
        asked = []
        on_terminate(lambda: asked.append(1))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        print(len(asked))
        """
    )
    assert (done.returncode, done.stdout) == (0, "2\n")


def test_sigterm_is_served_wherever_the_waiting_main_thread_is():
    """The handler runs on the main thread, here while that holds the lock of what it was told."""
    done = run(
        """
        import os, signal, threading
        from concurrent.futures import Future
        from replica_groups.signals import Signals
        from trainer.process import on_terminate
        signals, call = Signals(), Future()
        on_terminate(signals.drain)
        def over():
            if not signals.draining:
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Timer(0.05, call.set_result, ["answer"]).start()
        print(signals.wait(call, over=over), signals.draining)
        """
    )
    assert (done.returncode, done.stdout) == (0, "answer True\n")


def test_child_dies_with_its_parent():
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import subprocess, sys, time
                child = "import time; from configs.lifetime import die_with_parent; die_with_parent();" \\
                        "print('ready', flush=True); time.sleep(3600)"
                made = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
                made.stdout.readline()
                print(made.pid, flush=True)
                time.sleep(3600)
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        child = psutil.Process(int(parent.stdout.readline()))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    try:
        child.wait(timeout=30)
    except psutil.TimeoutExpired:
        child.kill()
        pytest.fail("the child outlived its parent")


def test_child_of_a_parent_that_is_already_gone_ends_at_once():
    gone = os.getpid() + 1_000_000
    done = run(f"from configs.lifetime import die_with_parent; die_with_parent({gone}); print('still here')")
    assert (done.returncode, done.stdout) == (1, "")


def test_output_of_every_kind_goes_to_the_log(tmp_path):
    log = tmp_path / "logs" / "rank0.log"
    done = run(
        """
        import os, sys
        from pathlib import Path
        from trainer.process import redirect_output
        redirect_output(Path(sys.argv[1]))
        print("python"); sys.stdout.flush()
        print("error", file=sys.stderr); sys.stderr.flush()
        os.system("echo child")
        """,
        str(log),
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert log.read_text().split() == ["python", "error", "child"]


@pytest.mark.parametrize("leaving", [False, True])
def test_sigterm_before_it_has_joined_ends_it_as_drained(leaving):
    """At once, also while the main thread is on its way out with another code: the first one wins then."""
    done = run(
        """
        import os, signal, sys, time
        from configs.words import Exit
        from trainer.process import Leaver, leave_on_terminate
        leaver = Leaver()
        leave_on_terminate(leaver)
        leaving = sys.argv[1] == "True"
        if leaving:
            leaver.before(lambda code, reason: os.kill(os.getpid(), signal.SIGTERM))
            leaver.leave(Exit.INCARNATION_OVER, "over")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        """,
        str(leaving),
    )
    assert done.returncode == (7 if leaving else 75), done.stderr
