/** The only code that calls the widget model's get and set. */

import { onChange } from "../base/signals";
import { Question } from "../model/question";
import type { SwitchSource } from "../model/switches";
import type { Work } from "../model/work";
import type { State, View } from "../state/state";
import type { AddressRequest, Changes } from "../wire/explorer.generated";
import type { WidgetModel } from "./model";
import { workOf } from "./work";

export const payloadOf = (model: WidgetModel): DataView | null => blockOf(model.get("payload"));

/** The data that arrives later for a large program, in order; empty if the payload is complete. */
export const laterOf = (model: WidgetModel): DataView[] =>
  ["groups", "memory", "rest"].map((name) => blockOf(model.get(name))).filter((block) => block !== null);

/** The view of the previous version, with the differences; null if there is none. */
export const beforeOf = (model: WidgetModel): DataView | null => blockOf(model.get("before"));

const blocks = new WeakMap<object, DataView>();

/** The bytes of a trait, in whichever form the host provides them; the same object for the same bytes; null for none. */
export function blockOf(value: unknown): DataView | null {
  if (typeof value !== "object" || value === null) return null;
  const before = blocks.get(value);
  if (before) return before;
  let block: DataView;
  // Objects from another frame are not instances of this frame's classes.
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

/** Calls back when Python sends a new view. */
export function onPayload(model: WidgetModel, callback: () => void): () => void {
  const names = ["payload", "groups", "memory", "rest", "failure"];
  for (const name of names) model.on(`change:${name}`, callback);
  return () => {
    for (const name of names) model.off(`change:${name}`, callback);
  };
}

/** The error if Python could not prepare the view, or empty. */
export function failureOf(model: WidgetModel): string {
  return String(model.get("failure") ?? "");
}

/** How long deriving the programs may take before it counts as late, in milliseconds. */
const LONG = 20_000;

/** The view, which Python derives on first request. */
export const viewOf = (model: WidgetModel): Work =>
  workOf(model, "fill", ["payload", "failure"], { patience: LONG });

/** The part of a large view that Python omits at first, to be faster; it arrives without a request. */
export const restOf = (model: WidgetModel): Work =>
  workOf(model, "rest", ["rest", "payload"], { patience: LONG });

export const whatIfOf = (model: WidgetModel): Work => workOf(model, "what if", ["what_if"]);

/** The comparison with JAX, if it is not in the payload. */
export const checkOf = (model: WidgetModel): Work => workOf(model, "check", ["check"]);

/** Advice on how to lower the peak. */
export const adviceOf = (model: WidgetModel): Work => workOf(model, "advice", ["advice"]);

/** What the kernel's device does in a second, as measured. */
export const speedOf = (model: WidgetModel): Work => workOf(model, "speed", ["speed"]);

/** Questions about addresses; a saved page has only what was answered. */
export function questionOf<Answer extends { asked: string }>(
  model: WidgetModel,
  work: "find" | "address",
  trait: string,
): Question<Answer> {
  let asked = "";
  const answers = workOf(model, work, [trait], { content: (): AddressRequest => ({ work, asked }) });
  return new Question(answers, (text) => {
    asked = text;
    if (model.comm_live !== false && model.send) answers.ask();
  });
}

/** The switches, and the effects of their settings. */
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

/** The compiled program: the whole, or one of several equal blocks; and what is available before XLA is done. */
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

/** Synchronizes the selected equation, as `stage:number`, the stages in each pane, and the filter. */
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
  const sent: (() => Record<string, string | boolean>)[] = [
    () => ({
      ...(state.other === null ? {} : { compared: state.compared }),
      ...{ stage: keys(state.shown.left), beside: keys(state.shown.right) },
    }),
    () => ({ question: questionOfView(state.view) }),
    () => ({ filter: state.filter }),
    () => (state.switches.settings === null ? {} : { switches: state.switches.key }),
    () => ({ selected: state.row >= 0 ? state.model.name(state.row) : "" }),
  ];
  const onSelected = () => {
    const row = state.model.rowNamed(String(model.get("selected") ?? ""));
    if (busy || row === state.row) return;
    if (row < 0) state.clear();
    else {
      if (!state.showsStages) state.show({});
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
  const asked = () => viewOfQuestion(String(model.get("question") ?? ""));
  const onQuestion = () => {
    const view = asked();
    if (busy || state.view === view) return;
    if (view === "") state.show({});
    else state.arrange(view);
  };
  const listeners: [string, () => void][] = [
    ["change:question", onQuestion],
    ["change:selected", onSelected],
    ["change:stage", onStages],
    ["change:beside", onStages],
    ["change:filter", onFilter],
    ["change:compared", onCompared],
    ["change:switches", onSwitches],
  ];
  // Whether stages are compared is not known yet, so it is sent together with which stages are shown.
  const isCompared = model.get("compared") === true;
  onStages();
  onFilter();
  state.compare(isCompared);
  // Read this first, since the other settings leave it.
  const view = asked();
  onSelected();
  onSwitches();
  if (view !== "") state.arrange(view);
  // What Python has selected or looks for is shown.
  if (state.view === "" && !state.compared) {
    if (state.filter !== "") state.show({}, "kept");
    if (state.row >= 0) state.open("details");
  }
  for (const [event, listener] of listeners) model.on(event, listener);
  const stops = sent.map((values) => onChange(values, put));
  return () => {
    for (const stop of stops) stop();
    for (const [event, listener] of listeners) model.off(event, listener);
  };
}

/** The views that Python names otherwise. */
const NAMED: Partial<Record<View, string>> = { kept: "saved", diff: "differs" };

const questionOfView = (view: View): string => NAMED[view] ?? view;

function viewOfQuestion(question: string): View {
  const named = Object.entries(NAMED).find(([, name]) => name === question);
  return (named?.[0] ?? question) as View;
}

/** Converts `forward+linear` to stage numbers. */
function numbersOf(stages: readonly string[], keys: string): number[] {
  return keys
    .split("+")
    .map((key) => stages.indexOf(key))
    .filter((i) => i >= 0);
}
