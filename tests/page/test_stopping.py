"""Work in a thread of its own is stopped by code that the kernel runs."""

import threading
import time

from jaxviz.page.stopping import _at_work, stop, stoppable


def test_work_in_another_thread_is_stopped_by_its_code():
    began, ended = threading.Event(), []

    def work():
        try:
            with stoppable("abc") as code:
                ended.append(code)
                began.set()
                while True:
                    time.sleep(0.001)
        except KeyboardInterrupt:
            ended.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(10)
    exec(ended[0], {})
    thread.join(10)
    assert ended[1:] == ["stopped"]
    assert _at_work == {}
    stop("abc")


def test_an_interrupt_reaches_the_main_thread():
    with stoppable("abc") as code:
        assert code == ""
