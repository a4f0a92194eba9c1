// @vitest-environment jsdom
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { textView } from "../src/code/editor";
import { linkScrolling, Places, target } from "../src/code/scrolling";
import { compiledOf, switchesOf } from "../src/host/sync";
import { PATIENCE } from "../src/host/work";
import { exchangesIn, ownExchanges } from "../src/model/exchanges";
import { GONE, NO_ANSWER } from "../src/model/work";
import { CompiledPane } from "../src/panes/compiled";
import { Linked, partsOf } from "../src/panes/compiledtext";
import { type Side, State } from "../src/state/state";
import type { Listing, Pane } from "../src/ui/pane";
import { model } from "./fixture";
import { followed, host } from "./host";
import { layOut } from "./layout";

const shared = model();
/** In the shared view: rows 0, 1 and 2 of the function, where 2 is nested in 1; and 3 and 4, derived from 0, of the backward pass. */
const stages: [string, number][] = [
  ["primal", 3],
  ["backward", 2],
];
const text = {
  text: "HloModule f\nENTRY %main {\n  %a = f32[3] sine(%x)\n  %b = f32[3] fusion(%a)\n}",
  links: [[], [], [0], [2, 3], []],
  cut: 0,
};
const answer = {
  function: "f",
  stages,
  backend: "cpu",
  stablehlo: text,
  hlo: text,
  memory: null,
  exchanges: null,
  notes: [],
  error: "",
  block: "",
  isBlock: false,
};

beforeAll(() => {
  layOut(0, 0);
  const none = { length: 0, item: () => null, [Symbol.iterator]: [][Symbol.iterator] };
  Range.prototype.getClientRects = () => none as unknown as DOMRectList;
  Range.prototype.getBoundingClientRect = () => new DOMRect();
});

afterEach(() => document.body.replaceChildren());

describe("the text", () => {
  const linked = new Linked(shared, text, stages);

  test("numbers within stages become rows of the model", () => {
    expect(linked.rows).toEqual([[], [], [0], [2, 3], []]);
    expect([...linked.linesOf]).toEqual([
      [0, [2]],
      [2, [3]],
      [3, [3]],
    ]);
    expect(new Linked(shared, { ...text, links: [[0]] }, [["backward", 2]]).rows).toEqual([[3]]);
  });

  test("an equation without a line is counted", () => {
    expect(linked.gone()).toEqual({ total: 4, without: 1 });
    expect([0, 3, 4].map((row) => linked.isLeft(row))).toEqual([true, true, false]);
    expect(new Linked(shared, text, [["backward", 2]]).isCompiled(0)).toBe(false);
  });

  test("an inlined call is represented by the equations nested in it", () => {
    expect(linked.linesOf.has(1)).toBe(false);
    expect(linked.standingFor(1)).toEqual([2]);
    expect(linked.isLeft(1)).toBe(true);
    expect(linked.standingFor(0)).toEqual([0]);
  });
});

test.each([
  [
    "  ROOT %a.1 = f32[8,16] fusion(%b, %c), kind=kLoop, calls=%fused // w",
    "ROOT|%a.1|f32[8,16]|fusion|%b|%c|kind=|calls=|%fused|// w",
  ],
  ["    %0 = stablehlo.add %arg0, %c : tensor<2x3xf32>", "%0|stablehlo.add|%arg0|%c|tensor<2x3xf32>"],
  ["  %k = s32[] constant(3)", "%k|s32[]|constant|3"],
  ['  %3 = "stablehlo.case"(%2) ({', "%3|stablehlo.case|%2"],
])("the parts of %s", (line, parts) => {
  expect(
    partsOf(line)
      .map(({ from, to }) => line.slice(from, to))
      .join("|"),
  ).toBe(parts);
});

function source(first: string, isGone = false) {
  const widget = {
    ...host({ compiled: first, what_if: first }),
    ...(isGone && { widget_manager: { kernel: null } }),
  };
  return {
    widget,
    work: compiledOf(widget),
    set: (text: string) => widget.set("compiled", text),
    says: (said: object) => widget.tell("msg:custom", { work: "compile", ...said }),
  };
}

describe("the pane", () => {
  function mounted(from: ReturnType<typeof source>) {
    const state = new State(shared);
    const pane = followed(new CompiledPane(state, from.work, "left", document.body, textView));
    document.body.append(pane.element);
    const lines = () => [...pane.element.querySelectorAll(".cm-line")];
    return { state, pane, lines };
  }

  test("requests, waits, and shows the result", () => {
    const from = source("");
    const { pane, lines } = mounted(from);
    expect(from.widget.sent).toEqual(["compile"]);
    expect(pane.element.textContent).toContain("Compiling");
    expect(pane.listing).toBeNull();
    from.set(JSON.stringify(answer));
    expect(lines().map((line) => line.classList.contains("is-linked"))).toEqual([
      false,
      false,
      true,
      true,
      false,
    ]);
    pane.destroy();
  });

  test("opens on the memory, whose rows link to their lines", () => {
    const place = shared.place(0)!;
    const line = shared.placeText(place);
    const memory = {
      summary: "peak 3.0 KiB in the backward pass",
      notes: ["One note."],
      kinds: ["argument", "constant", "residual", "result", "cotangent", "temporary", "own"],
      bytes: [
        [1024, 1024],
        [0, 0],
        [0, 1024],
        [0, 0],
        [0, 0],
        [0, 0],
        [0, 1024],
      ],
      turn: 1,
      held: [
        ["residual", "residual", "jnp.sin(x)", "f32[256]", 1024, line, "`mul` reads it"],
        ["copy", "own", "a copy", "f32[256]", 1024, "elsewhere.py:3", ""],
      ],
      more: [2, 2048],
    };
    const exchanges = {
      summary: "each device sends at least 6.0 B a run in 1 collective",
      rows: [["all-reduce", "data", 6, "2 × 6", "backward", line, "`w` is replicated over `data`", [4]]],
    };
    const compiled = JSON.stringify({ ...answer, memory, exchanges });
    const { state, pane, lines } = mounted(source(compiled));
    const found = () => pane.element.querySelector<HTMLElement>("[data-testid=compiled-memory]");
    expect(lines()).toEqual([]);
    expect(found()!.textContent).toContain("peak 3.0 KiB in the backward pass");
    expect(found()!.textContent).toContain("XLA's own 1.0 KiB");
    expect(found()!.textContent).toContain("One note.");
    expect(found()!.textContent).toContain("and 2.0 KiB in 2 more rows");
    const [first, second] = found()!.querySelectorAll<HTMLElement>("tbody tr");
    first!.click();
    expect([...state.selection.rows]).toEqual([...shared.rowsOfLine(place.file, place.line)]);
    expect(first!.classList.contains("is-selected")).toBe(true);
    second!.click();
    expect(first!.classList.contains("is-selected")).toBe(true);
    const exchanged = found()!.querySelectorAll("table")[1]!;
    expect(exchanged.textContent).toContain("all-reducedata6 B2 × 6backward");
    exchanged.querySelector<HTMLElement>("tbody tr")!.click();
    expect([...state.selection.rows]).toEqual([
      shared.view.stages.find(({ key }) => key === "backward")!.equations[0] + 1,
    ]);
    expect(exchanged.querySelector("tbody tr")!.classList.contains("is-selected")).toBe(true);
    // The equation and its ancestors are marked in every pane.
    const marks = exchangesIn(shared, compiled)!;
    for (let row = state.row; row >= 0; row = shared.origin(row))
      expect(marks.get(row)).toEqual([
        "all-reduce over data, backward: each device sends 6 B in 2 × 6; `w` is replicated over `data`",
      ]);
    const pressed = () => pane.element.querySelector(".jv-choice[aria-pressed=true]")?.textContent;
    expect(pressed()).toBe("memory and collectives");
    pane.element.querySelector<HTMLElement>("[data-testid=text-hlo]")!.click();
    expect(pressed()).toBe("optimised HLO");
    expect(found()).toBeNull();
    expect(lines()).not.toEqual([]);
    pane.element.querySelector<HTMLElement>("[data-testid=text-memory]")!.click();
    expect(found()).not.toBeNull();
    pane.destroy();
  });

  test("a program without communication is not parsed for it", () => {
    for (const text of ["", JSON.stringify(answer), JSON.stringify({ error: "too large" })])
      expect(exchangesIn(shared, text)).toBeNull();
  });

  describe("while the kernel is working", () => {
    beforeEach(() => {
      vi.useFakeTimers();
    });
    afterEach(() => {
      vi.useRealTimers();
    });
    const seen = (pane: CompiledPane) =>
      [...pane.element.querySelectorAll<HTMLElement>(".jv-waiting p, .jv-waiting span, .jv-waiting button")]
        .filter((e) => !e.closest("[hidden]"))
        .map((e) => e.textContent);
    const button = (pane: CompiledPane) => pane.element.querySelector<HTMLElement>(".jv-waiting button")!;

    test("reports that there is no answer", () => {
      const from = source("");
      const { pane, lines } = mounted(from);
      expect(seen(pane)).toEqual([expect.stringContaining("Compiling")]);
      vi.advanceTimersByTime(PATIENCE);
      expect(seen(pane)).toEqual([NO_ANSWER, "8 s", "Try again"]);
      button(pane).click();
      expect(from.widget.sent).toEqual(["compile", "compile"]);
      expect(seen(pane)).toEqual([expect.stringContaining("Compiling")]);
      vi.advanceTimersByTime(PATIENCE);
      expect(seen(pane)).toEqual([NO_ANSWER, "8 s", "Try again"]);
      from.says({});
      expect(seen(pane)).toEqual([expect.stringContaining("Compiling"), "8 s", "Stop waiting"]);
      from.set(JSON.stringify(answer));
      expect(lines()).not.toEqual([]);
      expect(seen(pane)).toEqual([]);
      pane.destroy();
      expect(from.widget.count()).toBe(0);
      expect(vi.getTimerCount()).toBe(0);

      const state = new State(shared, switchesOf(from.widget));
      from.widget.set("what_if", "");
      state.switches.ask();
      expect(state.switches.error).toBe("");
      vi.advanceTimersByTime(PATIENCE);
      expect(state.switches.error).toBe(NO_ANSWER);
      state.switches.destroy();
    });

    test("shows the elapsed time, and stops waiting on request", () => {
      const from = source("");
      const { pane, lines } = mounted(from);
      from.says({});
      vi.advanceTimersByTime(125_000);
      expect(seen(pane)).toEqual([expect.stringContaining("Compiling"), "2 min 05 s", "Stop waiting"]);
      button(pane).click();
      expect(seen(pane)).toEqual([expect.stringContaining("The kernel continues")]);
      from.says({ what: "compiling" });
      expect(seen(pane)).toHaveLength(1);
      from.set(JSON.stringify(answer));
      expect(lines()).not.toEqual([]);
      pane.destroy();
    });

    test("can be interrupted and started again", () => {
      const from = source("");
      const { pane } = mounted(from);
      from.says({});
      from.says({ stopped: true });
      expect(seen(pane)).toEqual(["Stopped.", "Start again"]);
      button(pane).click();
      expect(from.widget.sent).toEqual(["compile", "compile"]);
      expect(seen(pane)).toEqual([expect.stringContaining("Compiling")]);
      pane.destroy();
    });
  });

  test("shows JAX's input to XLA in the meantime, and offers to compile one block", () => {
    const from = source("");
    const { pane, lines } = mounted(from);
    const { hlo, memory, exchanges, notes, error, ...lowered } = answer;
    const block = "24 blocks that are the same, `x = layer(p, x)`";
    from.widget.set("lowered", JSON.stringify({ ...lowered, block }));
    from.says({ what: "compiling" });
    expect(lines()).not.toEqual([]);
    expect(pane.element.querySelector("[data-testid=compiling]")).not.toBeNull();
    // If the kernel cannot be interrupted, one block would have to wait for the whole.
    const offer = () => pane.element.querySelector<HTMLElement>("[data-testid=compile-block]");
    expect(offer()).toBeNull();
    from.says({ stopped: true });
    expect(pane.element.textContent).toContain("Stopped.");
    expect(pane.element.textContent).toContain("There are 24 blocks");
    offer()!.click();
    expect(from.widget.sent).toEqual(["compile", "compile one"]);
    expect(pane.element.textContent).toContain("one block alone");
    from.widget.set("lowered", "");
    from.set(JSON.stringify({ ...answer, block, isBlock: true, notes: ["One block alone"] }));
    expect(pane.element.querySelector("[data-testid=compiling]")).toBeNull();
    expect(lines()).not.toEqual([]);
    pane.element.querySelector<HTMLElement>("[data-testid=compile-all]")!.click();
    expect(from.widget.sent).toEqual(["compile", "compile one", "compile"]);
    expect(pane.element.querySelector("[data-testid=compiling]")).not.toBeNull();
    pane.destroy();
    expect(from.widget.count()).toBe(0);
  });

  test("reports immediately that there is no kernel, and retries on request", async () => {
    const from = source("", true);
    const { pane } = mounted(from);
    await vi.waitFor(() => expect(pane.element.textContent).toContain(GONE));
    expect(pane.element.textContent).not.toContain("Compiling");
    pane.element.querySelector<HTMLElement>("[data-testid=again]")!.click();
    expect(from.widget.sent).toEqual(["compile", "compile"]);
    expect(pane.element.textContent).toContain("Compiling");
    pane.destroy();

    const state = new State(shared, switchesOf(from.widget));
    state.switches.ask();
    await vi.waitFor(() => expect(state.switches.error).toBe(GONE));
    state.switches.destroy();
    expect(from.widget.count()).toBe(0);
  });

  test("reports an error, and shows StableHLO if XLA failed", () => {
    expect(
      mounted(source(JSON.stringify({ error: "ValueError: too large" }))).pane.element.textContent,
    ).toContain("ValueError: too large");
    const { pane } = mounted(source(JSON.stringify({ ...answer, hlo: null, error: "no kernel" })));
    expect(pane.element.querySelector("[aria-pressed=true]")?.textContent).toBe("StableHLO");
    pane.element.querySelector<HTMLElement>("[data-testid=text-hlo]")!.click();
    expect(pane.element.textContent).toContain("no kernel");
  });

  test("highlights the selection, and selects the equations of a line", () => {
    const { state, pane, lines } = mounted(source(JSON.stringify(answer)));
    state.selectRow(0);
    expect(lines()[2]!.classList.contains("is-selected")).toBe(true);
    expect(lines()[3]!.classList.contains("is-selected")).toBe(false);
    pane.step(1);
    expect([...state.selection.rows]).toEqual([2, 3]);
    pane.step(-1);
    expect([...state.selection.rows]).toEqual([0]);
  });

  test("reports that no line is left of an equation", () => {
    const { state, pane } = mounted(source(JSON.stringify(answer)));
    const said = () => pane.element.querySelector("[data-testid=no-instruction]")!.textContent;
    state.selectRow(4);
    expect(said()).toContain("no instruction left");
    state.selectRow(0);
    expect(said()).toBe("");
  });
});

describe("linked scrolling", () => {
  const HEIGHT = 10;
  function listing(rows: number[][], scrollTop: number): Listing {
    const scroller = document.createElement("div");
    for (const [name, value] of Object.entries({
      scrollTop,
      clientHeight: 50,
      scrollHeight: rows.length * HEIGHT,
    }))
      Object.defineProperty(scroller, name, { value, writable: true });
    return {
      scroller,
      rows,
      topOf: (line) => line * HEIGHT,
      lineAt: (top) => Math.max(0, Math.min(rows.length - 1, Math.floor(top / HEIGHT))),
    };
  }
  const empty = Array.from({ length: 36 }, (): number[] => []);
  const one = [[0], [1], [2], [3], ...empty];

  test("brings the same equation to the same height", () => {
    const state = new State(shared);
    const shifted = [...empty, ...one];
    const places = new Places(shared, shifted);
    expect(target(listing(one, 0), listing(shifted, 0), places, state)).toBe(36 * HEIGHT);
  });

  test("prefers the line that needs the least scrolling, and the selected line", () => {
    const state = new State(shared);
    const thrice = [...one, ...one, ...one];
    const places = new Places(shared, thrice);
    expect(target(listing(one, 0), listing(thrice, 390), places, state)).toBe(400);
    expect(target(listing(one, 0), listing(thrice, 10), places, state)).toBe(0);
    const turned = [...empty, [2], ...empty, [0]];
    const back = new Places(shared, turned);
    expect(target(listing(one, 0), listing(turned, 0), back, state)).toBe(turned.length * HEIGHT - 50);
    state.selectRow(2);
    expect(target(listing(one, 0), listing(turned, 0), back, state)).toBe((36 - 2) * HEIGHT);
  });

  test("falls back on equations of the same origin, and does nothing without any", () => {
    const state = new State(shared);
    expect(new Places(shared, [[], [0]]).lines([3])).toEqual([1]);
    expect(new Places(shared, [[3], [4], [1]]).lines([0])).toEqual([0, 1]);
    expect(target(listing(one, 0), listing(empty, 0), new Places(shared, empty), state)).toBeNull();
  });

  test("only the pane that the user scrolls moves the other, and not if linking is off", async () => {
    const state = new State(shared);
    const codes = document.createElement("div");
    const shifted = [...empty, ...one];
    const panes = { left: listing(one, 0), right: listing(shifted, 0) };
    const paneOf = (side: Side) => ({ element: panes[side].scroller, listing: panes[side] }) satisfies Pane;
    codes.append(panes.left.scroller, panes.right.scroller);
    document.body.append(codes);
    const undo = linkScrolling(codes, state, paneOf);
    const scroll = async (side: Side) => {
      panes[side].scroller.dispatchEvent(new Event("scroll"));
      await new Promise((done) => setTimeout(done, 20));
    };
    await scroll("left");
    expect(panes.right.scroller.scrollTop).toBe(0);
    panes.left.scroller.dispatchEvent(new Event("wheel", { bubbles: true }));
    await scroll("right");
    expect(panes.left.scroller.scrollTop).toBe(0);
    state.toggleLinking();
    await scroll("left");
    expect(panes.right.scroller.scrollTop).toBe(0);
    state.toggleLinking();
    await scroll("left");
    expect(panes.right.scroller.scrollTop).toBe(36 * HEIGHT);
    panes.right.scroller.scrollTop = 0;
    undo();
    await scroll("left");
    expect(panes.right.scroller.scrollTop).toBe(0);
  });
});

vi.stubGlobal("requestAnimationFrame", (callback: () => void) => setTimeout(callback, 0));

test("an equation whose types imply an exchange is marked, with what is exchanged and why", () => {
  const m = model({ implied_rows: [2], implied_texts: [13] });
  m.view.strings[13] = "all-reduce over `data` of 8.0 KiB\nall-gather over `model` of 1.0 KiB";
  expect(ownExchanges(m).get(2)).toEqual([
    "all-reduce over `data` of 8.0 KiB",
    "all-gather over `model` of 1.0 KiB",
  ]);
});
