// @vitest-environment jsdom
/** Addresses: what the kernel says a text means, and which address a selected equation has. */

import { afterEach, beforeAll, expect, test, vi } from "vitest";
import { effect } from "../src/base/signals";
import { Search } from "../src/graph/search";
import { questionOf } from "../src/host/sync";
import { find } from "../src/model/find";
import { InspectorPane } from "../src/panes/inspector";
import { SearchBox } from "../src/panes/search";
import { State } from "../src/state/state";
import type { Pane } from "../src/ui/pane";
import type { EquationAddresses, FoundAddresses } from "../src/wire/explorer.generated";
import { model } from "./fixture";
import { followed, host } from "./host";
import { layOut } from "./layout";

beforeAll(() => layOut(0, 0));
afterEach(() => document.body.replaceChildren());

const found = (asked: string, ...equations: string[]) =>
  JSON.stringify({ asked, values: equations.length > 0 ? [[asked, "model.py:2 · f32[3]", equations]] : [] });

function asking(traits: Record<string, unknown> = {}) {
  const widget = host(traits);
  const meaning = questionOf<FoundAddresses>(widget, "find", "found");
  const addresses = questionOf<EquationAddresses>(widget, "address", "address");
  const none = [undefined, undefined, undefined, undefined, undefined] as const;
  return { widget, meaning, addresses, state: new State(model(), ...none, meaning, addresses) };
}

test("one text is asked at a time, and the latest once the kernel has answered", () => {
  const { widget, meaning } = asking();
  const stop = effect(() => void meaning.last);
  expect([meaning.about("h"), meaning.about("h2"), meaning.about("")]).toEqual([null, null, null]);
  expect(widget.sent).toEqual([{ work: "find", asked: "h" }]);
  widget.set("found", found("h", "primal:0"));
  expect(meaning.about("h2")).toBeNull();
  expect(widget.sent.slice(1)).toEqual([{ work: "find", asked: "h2" }]);
  widget.set("found", found("h2"));
  expect(meaning.about("h2")).toEqual({ asked: "h2", values: [] });
  expect(widget.sent).toHaveLength(2);
  stop();
});

test("a page without a kernel asks nothing, and has what was answered", () => {
  const widget = Object.assign(host({ found: found("h", "primal:0") }), { comm_live: false });
  const meaning = questionOf<FoundAddresses>(widget, "find", "found");
  expect([meaning.about("h")?.asked, meaning.about("k")]).toEqual(["h", null]);
  expect(widget.sent).toEqual([]);
});

test("an address is found in all stages, and one that looks like a condition is no error", () => {
  const { addresses, equations } = find(model(), "line:out", [
    ["a", "model.py:2", ["primal:0", "jvp:0", "nowhere:7"]],
  ]);
  expect(addresses).toEqual([
    { title: "a", about: "model.py:2", copies: [0, model().rowNamed("jvp:0")].filter((r) => r >= 0) },
  ]);
  expect(equations).toEqual([]);
  expect(() => find(model(), "line:out")).toThrow("is not a line");
});

test("the search field shows what a text means when the kernel has said it, and goes to a stage that is shown", async () => {
  const { widget, state } = asking();
  const box = new SearchBox(state, () => import("../src/host/parts/search"));
  const stop = effect(() => {
    void state.meaning.last;
    box.hear();
  });
  document.body.append(box.element);
  const input = box.element.querySelector("input")!;
  const groups = () => [...box.element.querySelectorAll("[role=group]")].map((group) => group.ariaLabel);
  input.focus();
  await vi.waitFor(() => expect(groups()).toEqual(["searches"]));
  input.value = "jnp.sin( x )";
  input.dispatchEvent(new Event("input"));
  expect(groups()).toEqual([]);
  expect(widget.sent).toEqual([{ work: "find", asked: "jnp.sin( x )" }]);
  widget.set("found", found("jnp.sin( x )", "backward:0", "primal:0"));
  expect(groups()).toEqual(["addresses"]);
  expect(box.element.querySelector("[data-testid=found]")!.textContent).toBe(
    "jnp.sin( x )model.py:2 · f32[3]",
  );
  state.show({ left: [0], right: [] });
  box.element.querySelector<HTMLElement>("[data-testid=found]")!.click();
  expect([...state.selection.rows]).toEqual([0]);
  stop();
});

test("the graph's search finds what a text means, beside the equations that match", () => {
  const { widget, state } = asking();
  const said: string[] = [];
  const search = new Search(state.model, [0], state.meaning, (text) => said.push(text));
  const stop = effect(() => void state.meaning.last);
  search.find("g(y)");
  expect([search.rows, said.at(-1), search.hear()]).toEqual([[], "0 hits", false]);
  widget.set("found", found("g(y)", "primal:1", "backward:0"));
  expect(search.hear()).toBe(true);
  search.find(search.text);
  expect([search.rows, said.at(-1), search.hear()]).toEqual([[1], "1 hit", false]);
  stop();
});

test("the selected equation shows its address, and copies it for Python, once the details are open", async () => {
  const written: string[] = [];
  vi.stubGlobal("navigator", { clipboard: { writeText: async (text: string) => void written.push(text) } });
  const { widget, state } = asking();
  const pane: Pane = followed(new InspectorPane(state));
  const { element } = pane;
  const list = () => element.querySelector<HTMLElement>("[data-testid=addresses]")!;
  const isShown = () => !list().closest("dd")!.hidden;
  state.selectRow(0);
  expect([widget.sent, isShown()]).toEqual([[], false]);
  state.open("details");
  expect([widget.sent, isShown()]).toEqual([[{ work: "address", asked: "primal:0" }], false]);
  const code = "jaxviz.at('y', phase='cotangent')";
  widget.set("address", JSON.stringify({ asked: "primal:0", addresses: [["y", "cotangent", code]] }));
  expect([list().textContent, isShown()]).toEqual(["y cotangent Copy ", true]);
  list().querySelector("button")!.click();
  await vi.waitFor(() => expect(list().textContent).toContain("copied"));
  expect(written).toEqual([code]);
  state.selectRow(1);
  expect([widget.sent.at(-1), isShown()]).toEqual([{ work: "address", asked: "primal:1" }, false]);
  widget.set("address", JSON.stringify({ asked: "primal:1", addresses: [] }));
  expect(isShown()).toBe(false);
  vi.unstubAllGlobals();
  pane.destroy?.();
});
