import { describe, expect, it } from "vitest";
import { keepState, merged } from "../src/host/keep";
import type { WidgetModel } from "../src/host/model";

const STATE = "application/vnd.jupyter.widget-state+json";
const VIEW = "application/vnd.jupyter.widget-view+json";

const explorer = (code: string) => ({ state: { _shows: "explorer", _code: `IPY_MODEL_${code}` } });
const box = (...children: string[]) => ({ state: { children: children.map((id) => `IPY_MODEL_${id}`) } });
const slider = { state: { value: 3 } };
const code = { state: { code: "…" } };
const saved = (state: object) => ({ version_major: 2, version_minor: 0, state }) as never;
const ids = (made: { state: object } | null) => Object.keys(made?.state ?? {}).sort();

describe("the saved state of a notebook's widgets", () => {
  it("has the explorers displayed, with the widgets they refer to", () => {
    const now = saved({ e: explorer("c"), hidden: explorer("c"), c: code, s: slider });
    expect(ids(merged(now, undefined, ["e", "s"]))).toEqual(["c", "e"]);
    expect(merged(now, undefined, ["e"])).toMatchObject({ version_major: 2 });
  });

  it("has a box that contains an explorer, too", () => {
    const now = saved({ b: box("e", "s"), e: explorer("c"), c: code, s: slider });
    expect(ids(merged(now, undefined, ["b"]))).toEqual(["b", "c", "e", "s"]);
  });

  it("has a widget with an explorer among its outputs, as interact's", () => {
    const output = {
      state: { outputs: [{ output_type: "display_data", data: { [VIEW]: { model_id: "e" } } }] },
    };
    const now = saved({ b: box("o", "s"), o: output, e: explorer("c"), c: code, s: slider });
    expect(ids(merged(now, undefined, ["b"]))).toEqual(["b", "c", "e", "o", "s"]);
  });

  it("has the widgets that others saved, without explorers that are no longer displayed", () => {
    const before = saved({ old: explorer("oldCode"), oldCode: code, s: slider, t: slider });
    const now = saved({ e: explorer("c"), c: code, s: slider });
    expect(ids(merged(now, before, ["e"]))).toEqual(["c", "e", "s", "t"]);
    expect(ids(merged(saved({}), before, ["old"]))).toEqual(["old", "oldCode", "s", "t"]);
  });

  it("has the state from when the notebook was opened, even if it has no kernel and JupyterLab has deleted it", () => {
    const earlier = { e: explorer("c"), c: code, s: slider, old: explorer("c") };
    expect(ids(merged(saved({}), saved({}), ["e", "s"], earlier))).toEqual(["c", "e"]);
  });

  it("is empty if nothing is displayed", () => {
    expect(merged(saved({ e: explorer("c"), c: code }), undefined, [])).toBe(null);
  });
});

function notebook(manager: object) {
  const metadata = new Map<string, unknown>();
  const listeners: ((context: unknown, state: string) => void)[] = [];
  const outputs = [{ data: { [VIEW]: { model_id: "e" } } }, {}];
  const context = {
    saveState: { connect: (listener: (typeof listeners)[number]) => listeners.push(listener) },
    model: {
      cells: [{}, { outputs: { toJSON: () => outputs } }],
      getMetadata: (name: string) => metadata.get(name),
      setMetadata: (name: string, value: unknown) => metadata.set(name, value),
      deleteMetadata: (name: string) => metadata.delete(name),
    },
  };
  const model = { widget_manager: { ...manager, context } } as unknown as WidgetModel;
  return { model, metadata, outputs, listeners };
}

const manager = { get_state_sync: () => saved({ e: explorer("c"), c: code }) };

describe("a notebook in JupyterLab", () => {
  it("has the state when it is saved, written once for all explorers", () => {
    const { model, metadata, outputs, listeners } = notebook(manager);
    keepState(model);
    keepState(model);
    expect(listeners.length).toBe(1);
    listeners[0]!(null, "completed");
    expect(metadata.size).toBe(0);
    listeners[0]!(null, "started");
    expect(ids((metadata.get("widgets") as Record<string, never>)[STATE]!)).toEqual(["c", "e"]);
    outputs.length = 0;
    listeners[0]!(null, "started");
    expect(metadata.size).toBe(0);
  });

  it("keeps the state it was opened with", () => {
    const { model, metadata, listeners } = notebook({ get_state_sync: () => saved({}) });
    metadata.set("widgets", { [STATE]: saved({ e: explorer("c"), c: code }) });
    keepState(model);
    for (let i = 0; i < 2; i++) {
      metadata.set("widgets", { [STATE]: saved({}) });
      listeners[0]!(null, "started");
      expect(ids((metadata.get("widgets") as Record<string, never>)[STATE]!)).toEqual(["c", "e"]);
    }
  });

  it("is not touched in other hosts", () => {
    keepState({} as WidgetModel);
    keepState({ widget_manager: {} } as WidgetModel);
    const { model, listeners } = notebook({});
    keepState(model);
    expect(listeners).toEqual([]);
  });
});
