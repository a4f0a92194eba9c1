"""A widget seen from its page: requests, and what they change of what the page shows."""

import json


class Page:
    """The page of a stepper. It prints each field of the stop that a request has changed.

    Args:
      stepper: what `jaxviz.step` returns.
    """

    def __init__(self, stepper):
        self.widget, self.shown = stepper.widget(), {}
        self.look()

    def ask(self, do, **more):
        sent = []
        self.widget.send = sent.append
        self.widget._handle_custom_msg({"do": do, **more}, [])
        if sent != [{"begun": do, "can_stop": True}, {"done": do}]:
            print("sent:", *sent)
        self.look()

    def look(self):
        before = self.shown
        self.shown = {**json.loads(self.widget.stop), "failure": json.loads(self.widget.failure or "null")}
        for name, value in self.shown.items():
            if before.get(name) != value and (before or value):
                print(f"{name}: {brief(value)}")
        for name in before.keys() - self.shown.keys():
            print(f"{name} is gone")


def brief(value):
    """A value of JSON on a line, without long lists, and with as many digits as machines have in common."""
    if isinstance(value, dict) and "histogram" in value:
        return f"{value['type']} {value['text'] or value['note']}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {brief(x)}' for name, x in value.items())}}}"
    if isinstance(value, list):
        inside = ", ".join(map(brief, value))
        return f"[{inside}]" if len(value) < 10 else f"[{len(value)} items]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value[:20] + "…" if isinstance(value, str) and value.startswith("data:") else repr(value)
