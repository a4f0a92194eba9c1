// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { attending } from "../src/host/keep";
import { attend, ticksOf, zoomable } from "../src/main/charts";
import type { Along, Zoomable } from "../src/wire/charts.generated";
import { zipped } from "./host";

const SECONDS: Along = {
  left: 100,
  right: 300,
  last: 2,
  units: [
    ["s", 1],
    ["ms", 1e-3],
  ],
  label: "time",
  whole: false,
  ticks: 60,
};
const STEPS: Along = { ...SECONDS, last: 8, units: [["", 1]], label: "equation", whole: true, ticks: -1 };

beforeEach(() => {
  // One pixel for each unit.
  vi.spyOn(Element.prototype, "getBoundingClientRect").mockReturnValue(new DOMRect(0, 0, 480, 200));
});
afterEach(() => {
  vi.restoreAllMocks();
  document.body.replaceChildren();
});

async function shown(along: Along, inside: string, data: Partial<Zoomable> = {}) {
  const all: Zoomable = { along, areas: null, curves: [], ...data };
  const packed = new Uint8Array((await zipped(JSON.stringify(all))).buffer);
  const text = `<div class="jaxviz-picture"><svg viewBox="0 0 480 200" data-zoom="${btoa(String.fromCharCode(...packed))}">
    <title>said</title><text x="0" y="13">the title</text>${inside}</svg></div>`;
  document.body.innerHTML = text;
  const picture = document.querySelector("svg")!;
  await zoomable(picture);
  const fire = (type: string, more: object = {}, target: Element = picture) => {
    const event = new MouseEvent(type, { bubbles: true, cancelable: true, buttons: 1, ...more });
    for (const [name, value] of Object.entries({ pointerId: 1, deltaX: 0, deltaMode: 0, ...more }))
      if (!(name in event)) Object.assign(event, { [name]: value });
    target.dispatchEvent(event);
  };
  const zoom = (at: number, by: number) =>
    fire("wheel", { deltaY: (-1000 / 3) * by, clientX: at, ctrlKey: true, deltaMode: 0 });
  const title = () => picture.querySelector("text")!.textContent;
  const key = (name: string) =>
    picture.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  return {
    picture,
    fire,
    zoom,
    title,
    key,
    find: (what: string) => picture.querySelector<SVGElement>(what)!,
  };
}

const BOXES = `<g data-moves=""><rect x="100" y="30" width="50" height="13" fill="red" data-said="f: trace 500 ms"/>
  <rect x="200" y="30" width="100" height="13" fill="blue" data-said="f: compile 1 s"/></g>
  <g data-moves="ticks"><path d="M100 60L100 64"/><text x="100" y="76">0</text></g>`;

test("boxes and ticks move with a zoom about the pointer, and are what they were after a double click", async () => {
  const { picture, fire, zoom, title, find } = await shown(SECONDS, BOXES);
  const before = picture.innerHTML;
  zoom(200, 1);
  expect(find('[fill="blue"]').getAttribute("x")).toBe("200.00");
  expect(find('[fill="blue"]').getAttribute("width")).toBe("200.00");
  expect(find('[fill="red"]').getAttribute("x")).toBe("0.00");
  expect(title()).toBe("500 ms to 1.5 s of 2 s");
  const ticks = [...picture.querySelectorAll<SVGElement>("[data-moves=ticks] text")];
  expect(ticks.filter(({ style }) => style.display !== "none").map((t) => t.textContent)).toEqual([
    "0.5 s",
    "1 s",
    "1.5 s",
  ]);
  fire("pointerdown", { clientX: 200 });
  fire("pointermove", { clientX: 150 });
  fire("pointerup", { clientX: 150 });
  fire("pointerleave");
  expect(title()).toBe("750 ms to 1.75 s of 2 s");
  fire("dblclick");
  expect(title()).toBe("the title");
  const after = picture.innerHTML.replaceAll(/\.00"/g, '"').replaceAll(/ style="[^"]*"/g, "");
  expect(after).toBe(before.replaceAll(/ style="[^"]*"/g, ""));
});

test("a box says what it is, and what is between boxes when it is", async () => {
  const { fire, title, find } = await shown(SECONDS, BOXES);
  fire("pointermove", { clientX: 120, buttons: 0 }, find('[fill="red"]'));
  expect(title()).toBe("f: trace 500 ms");
  fire("pointermove", { clientX: 175, buttons: 0 });
  expect(title()).toBe("750 ms");
  fire("pointerleave");
  expect(title()).toBe("the title");
});

const AREAS = `<g data-moves=""><path d="M100 150V100H300V150Z" fill="orange"/>
  <text x="200" y="33" data-at="225.0 225.0">peak</text><text x="125" y="165" data-at="100.0 150.0">up</text></g>`;
const AMOUNTS = {
  areas: {
    step: "equation",
    kinds: [["residual", "orange"] as [string, string]],
    passes: [["forward", 0] as [string, number], ["backward", 6] as [string, number]],
    changes: [[1024, 1024, 0, 0, 0, 2048, 0, -3072]],
    top: 4096,
    base: 150,
    scale: 100,
  },
};

test("memory is drawn again from all of its steps, each of which is read with its pass", async () => {
  const { picture, zoom, title, key, find, fire } = await shown(STEPS, AREAS, AMOUNTS);
  fire("pointermove", { clientX: 226, buttons: 0 });
  expect(title()).toBe("forward, equation 6: 4.0 KiB: residual 4.0 KiB");
  zoom(300, 1);
  const [drawn] = [...picture.querySelectorAll<SVGElement>('path[fill="orange"]')].filter(
    ({ style }) => style.display !== "none",
  );
  expect(drawn!.getAttribute("d")).toBe(
    "M100.00 150.0V100.0H150.00V50.0H200.00V50.0H250.00V125.0H300.00H300.00V150.0H250.00V150.0H200.00V150.0H150.00V150.0Z",
  );
  expect(find('[data-at="225.0 225.0"]').getAttribute("x")).toBe("150.0");
  expect(find('[data-at="100.0 150.0"]').style.display).toBe("none");
  fire("pointerleave");
  expect(title()).toBe("equations 5 to 8 of 8");
  key("End");
  expect(title()).toBe("backward, equation 8: 1.0 KiB: residual 1.0 KiB");
  expect(document.querySelector("output")!.textContent).toBe(title());
  for (let i = 0; i < 4; i++) key("ArrowLeft");
  expect(title()).toBe("forward, equation 4: 2.0 KiB: residual 2.0 KiB");
  fire("pointerleave");
  expect(title()).toBe("equations 4 to 7 of 8");
  key("0");
  expect(title()).toBe("the title");
});

test("curves are read at the nearest point", async () => {
  const along = { ...STEPS, label: "iteration", ticks: 150 };
  const { fire, title } = await shown(along, "", {
    curves: [{ name: "value", x: [0, 4, 8], y: [1, 2e6, 3] }],
  });
  fire("pointermove", { clientX: 210, buttons: 0 });
  expect(title()).toBe("iteration 4: value 2.00e+6");
});

test("bars have their names where they have room", async () => {
  const bar = `<g data-moves="bars"><rect x="290" y="30" width="10" height="16" fill="red" data-said="a_long_name: 100 ms"/></g>`;
  const { picture, zoom } = await shown(SECONDS, bar);
  const names = () => [...picture.querySelectorAll("[data-moves=bars] text")].map((each) => each.textContent);
  expect(names()).toEqual([]);
  zoom(300, 4);
  expect(names()).toEqual(["a_long_name"]);
});

test("ticks are as many round numbers as asked for", () => {
  expect(ticksOf(SECONDS, 0, 2, 4).map(([, text]) => text)).toEqual(["0", "0.5 s", "1 s", "1.5 s", "2 s"]);
  expect(ticksOf(SECONDS, 0.0031, 0.0042, 3).map(([, text]) => text)).toEqual(["3.5 ms", "4 ms"]);
  expect(ticksOf(STEPS, 3.2, 4.1, 4).map(([, text]) => text)).toEqual(["4"]);
});

test("a picture is attended to when it is pointed at, and all can be reached with the keyboard", async () => {
  const { picture } = await shown(SECONDS, BOXES);
  picture.parentElement!.innerHTML = picture.outerHTML
    .replace(' class="jv-time"', "")
    .replace(' tabindex="0"', "");
  attend();
  const again = document.querySelector("svg")!;
  expect(again.tabIndex).toBe(0);
  expect(again.classList.contains("jv-time")).toBe(false);
  again.dispatchEvent(new MouseEvent("pointerover", { bubbles: true, composed: true }));
  await vi.waitFor(() => expect(again.classList.contains("jv-time")).toBe(true));
});

test("what zooms charts is saved with a notebook that has some", () => {
  const cell = (html: string) => ({ outputs: { toJSON: () => [{ data: { "text/html": html } }] } }) as never;
  const all = { a: { state: { _shows: "live" } }, b: { state: { _shows: "charts" } }, c: { state: {} } };
  expect(attending([cell('<svg data-zoom="x">')], all)).toEqual(["b"]);
  expect(attending([cell("<svg>")], all)).toEqual([]);
});
