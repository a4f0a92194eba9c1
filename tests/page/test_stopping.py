"""Work in a separate thread is stopped by code that the kernel runs."""

import threading
import time

from jaxviz.page.stopping import _at_work, stoppable


def test_an_interrupt_reaches_the_main_thread():
    with stoppable() as code:
        assert code == ""


def test_of_two_works_in_other_threads_one_is_stopped_by_its_code():
    ended, codes = [], {}
    began = threading.Barrier(3)
    over = threading.Event()

    def work(name):
        try:
            with stoppable() as codes[name]:
                began.wait(10)
                while not over.is_set():
                    time.sleep(0.001)
                ended.append(f"{name} is done")
        except KeyboardInterrupt:
            ended.append(f"{name} is stopped")

    threads = {name: threading.Thread(target=work, args=(name,)) for name in ("one", "two")}
    for thread in threads.values():
        thread.start()
    began.wait(10)
    exec(codes["one"], {})
    threads["one"].join(10)
    over.set()
    threads["two"].join(10)
    assert ended == ["one is stopped", "two is done"]
    assert _at_work == {}
    exec(codes["one"], {})  # too late
