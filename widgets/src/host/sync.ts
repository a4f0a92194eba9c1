/** The only caller of the widget model's get and set. */

import type { SwitchSource } from "../model/switches";
import type { State } from "../state/state";
import type { Changes } from "../wire/explorer.generated";
import type { WidgetModel } from "./model";
import { type Work, workOf } from "./work";

export const payloadOf = (model: WidgetModel): DataView | null => blockOf(model.get("payload"));

/** What came later of a large program; null where the payload is all, or while there is none. */
export const laterOf = (model: WidgetModel): DataView | null => blockOf(model.get("rest"));

/** The view of the version before, and what differs; null where there is none. */
export const beforeOf = (model: WidgetModel): DataView | null => blockOf(model.get("before"));

const blocks = new WeakMap<object, DataView>();

/** The bytes of a trait, in whatever form a host has them, and the same object for the same bytes; null for none. */
export function blockOf(value: unknown): DataView | null {
  if (typeof value !== "object" || value === null) return null;
  const before = blocks.get(value);
  if (before) return before;
  let block: DataView;
  // What comes from another frame is no instance of this frame's classes.
  if (ArrayBuffer.isView(value)) block = new DataView(value.buffer, value.byteOffset, value.byteLength);
  else if (Object.prototype.toString.call(value) === "[object ArrayBuffer]")
    block = new DataView(value as ArrayBuffer);
  else return null;
  if (block.byteLength === 0) return null;
  blocks.set(value, block);
  return block;
}

export function changesOf(model: WidgetModel): Changes | null {
  const text = String(model.get("changes") ?? "");
  return text === "" ? null : (JSON.parse(text) as Changes);
}

/** Calls back when Python sends another view. */
export function onPayload(model: WidgetModel, callback: () => void): () => void {
  for (const name of ["payload", "rest", "failure"]) model.on(`change:${name}`, callback);
  return () => {
    for (const name of ["payload", "rest", "failure"]) model.off(`change:${name}`, callback);
  };
}

/** What went wrong in Python before there was anything to show, or empty. */
export function failureOf(model: WidgetModel): string {
  return String(model.get("failure") ?? "");
}

/** Milliseconds until the programs are late, which take long at times. */
const LONG = 20_000;

/** The view, which Python makes when it is first asked. */
export const viewOf = (model: WidgetModel): Work =>
  workOf(model, "fill", ["payload", "failure"], { patience: LONG });

/** What Python left out of the view of a large program, so that the rest is there sooner; it comes by itself. */
export const restOf = (model: WidgetModel): Work =>
  workOf(model, "rest", ["rest", "payload"], { patience: LONG });

export const whatIfOf = (model: WidgetModel): Work => workOf(model, "what if", ["what_if"]);

/** The comparison with JAX, where the payload has none. */
export const checkOf = (model: WidgetModel): Work => workOf(model, "check", ["check"]);

/** What would lower the peak, in words. */
export const adviceOf = (model: WidgetModel): Work => workOf(model, "advice", ["advice"]);

/** The switches: what there is to switch, and what settings come to. */
export function switchesOf(model: WidgetModel): SwitchSource {
  let next: unknown = null;
  const json = (name: string) => {
    const text = String(model.get(name) ?? "");
    return text === "" ? null : JSON.parse(text);
  };
  const tries = workOf(model, "try", ["tried"], { content: () => next });
  return {
    table: whatIfOf(model),
    tries,
    isAlone: model.comm_live === false,
    request(what) {
      next = { work: "try", ...what };
      tries.ask();
    },
    tried: () => json("tried"),
    drawn: () => json("drawn"),
    written: () => json("written"),
    line: () => json("line"),
  };
}

/** The compiled program: of all, or of one block in the place of all that are the same; and what is there before XLA is done. */
export interface Compilation {
  whole: Work;
  block: Work;
  lowered(): string;
}

export const compiledOf = (model: WidgetModel): Compilation => ({
  whole: workOf(model, "compile", ["compiled"]),
  block: workOf(model, "compile one", ["compiled"]),
  lowered: () => String(model.get("lowered") ?? ""),
});

/** Keeps the selected equation, as `stage:number`, the stages in each pane, and the filter the same on both sides. */
export function syncState(model: WidgetModel, state: State): () => void {
  let busy = false;
  const put = (values: Record<string, string | boolean>) => {
    const changed = Object.entries(values).filter(([name, value]) => (model.get(name) ?? false) !== value);
    if (changed.length === 0) return;
    busy = true;
    for (const [name, value] of changed) model.set(name, value);
    model.save_changes();
    busy = false;
  };
  const keys = (stages: readonly number[]) => stages.map((i) => state.stageKeys[i] ?? "").join("+");
  const stages = (name: string) => numbersOf(state.stageKeys, String(model.get(name) ?? ""));
  const unsubscribe = state.subscribe((change) => {
    if (change === "shown" && state.other !== null) put({ compared: state.compared });
    if (change === "shown") put({ stage: keys(state.shown.left), beside: keys(state.shown.right) });
    if (change === "view") put({ overview: state.view === "overview", motion: state.view === "motion" });
    if (change === "filter") put({ filter: state.filter });
    if (change === "switches" && state.switches.settings !== null) put({ switches: state.switches.key });
    if (change === "selection") put({ selected: state.row >= 0 ? state.model.name(state.row) : "" });
  });
  const onSelected = () => {
    const row = state.model.rowNamed(String(model.get("selected") ?? ""));
    if (busy || row === state.row) return;
    if (row < 0) state.clear();
    else {
      if (state.view === "overview" || state.view === "motion") state.show({});
      state.goTo(row);
    }
  };
  const onStages = () => {
    const left = stages("stage");
    if (!busy && left.length > 0) state.show({ left, right: stages("beside") });
  };
  const onFilter = () => {
    if (!busy) state.filterBy(String(model.get("filter") ?? ""));
  };
  const onCompared = () => {
    if (!busy) state.compare(model.get("compared") === true);
  };
  const onSwitches = () => {
    const key = String(model.get("switches") ?? "");
    if (!busy && (key !== "" || state.switches.chosen !== null))
      state.switches.ask(() => state.switches.restore(key));
  };
  const onView = (view: "overview" | "motion") => () => {
    if (busy || (state.view === view) === (model.get(view) === true)) return;
    if (model.get(view) === true) state.arrange(view);
    else state.show({});
  };
  const listeners: [string, () => void][] = [
    ["change:overview", onView("overview")],
    ["change:motion", onView("motion")],
    ["change:selected", onSelected],
    ["change:stage", onStages],
    ["change:beside", onStages],
    ["change:filter", onFilter],
    ["change:compared", onCompared],
    ["change:switches", onSwitches],
  ];
  // Which stages are shown is told to Python together with whether they are compared, which is not known yet.
  const isCompared = model.get("compared") === true;
  onStages();
  onFilter();
  state.compare(isCompared);
  // Which is first so that what else is told does not lead away from it.
  const isOverview = model.get("overview") === true;
  const isMotion = model.get("motion") === true;
  onSelected();
  onSwitches();
  if (isMotion) state.arrange("motion");
  else if (isOverview) state.arrange("overview");
  for (const [event, listener] of listeners) model.on(event, listener);
  return () => {
    unsubscribe();
    for (const [event, listener] of listeners) model.off(event, listener);
  };
}

/** `forward+linear` as numbers of stages. */
function numbersOf(stages: readonly string[], keys: string): number[] {
  return keys
    .split("+")
    .map((key) => stages.indexOf(key))
    .filter((i) => i >= 0);
}
