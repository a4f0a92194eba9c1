// @vitest-environment jsdom
import { afterEach, expect, test, vi } from "vitest";
import { frame } from "../src/ui/frame";
import { host } from "./host";

/** Calls back when told to. */
let resized: () => void;
vi.stubGlobal(
  "ResizeObserver",
  class {
    constructor(callback: (entries: object[]) => void) {
      resized = () => callback([{ contentRect: { width: 800 } }]);
    }
    observe(): void {}
    unobserve(): void {}
    disconnect(): void {}
  },
);

afterEach(() => document.body.replaceChildren());

/** A part of a page that scrolls. */
function scroller(height: () => number, inside: Element): HTMLElement {
  const element = document.createElement("div");
  element.style.overflowY = "auto";
  Object.defineProperty(element, "clientHeight", { get: height });
  element.append(inside);
  return element;
}

/** A widget in the output of a cell, which is as high as its contents, in a notebook of some height. */
function show(height: number, notebook: { height: number }) {
  const el = document.createElement("div");
  const output = () => Number.parseFloat(getComputedStyle(root).display === "none" ? "0" : root.style.height);
  document.body.append(scroller(() => notebook.height, scroller(output, el)));
  const model = host({ height });
  const [root, stop] = frame({ model, el }, "explorer");
  resized();
  const drag = (to: string) => {
    root.style.height = to;
    resized();
    window.dispatchEvent(new Event("pointerup"));
  };
  return { root, model, drag, stop };
}

test("a widget is as high as the visible part of the notebook, and follows it", () => {
  const notebook = { height: 900 };
  const { root, stop, model } = show(0, notebook);
  expect(root.style.height).toBe("876px");
  notebook.height = 700;
  resized();
  expect(root.style.height).toBe("676px");
  stop();
  expect(model.count()).toBe(0);
  expect(show(0, { height: 400 }).root.style.height).toBe("520px");
});

test("a drag of the lower edge is remembered, and Python sets the height", () => {
  const { root, model, drag } = show(0, { height: 900 });
  drag("640.4px");
  expect([model.values["height"], root.style.height]).toEqual([640, "640px"]);
  resized();
  expect(root.style.height).toBe("640px");
  model.set("height", 0);
  expect(root.style.height).toBe("876px");
  expect(show(600, { height: 900 }).root.style.height).toBe("600px");
});

test("in a frame, which may be as high as its contents, it has its part of the window", () => {
  vi.stubGlobal("outerHeight", 1000);
  const parent = vi.spyOn(window, "parent", "get").mockReturnValue({} as Window);
  const el = document.createElement("div");
  document.body.append(el);
  const [root, stop] = frame({ model: host({}), el }, "explorer");
  expect(root.style.height).toBe("700px");
  stop();
  parent.mockRestore();
});
