/** The explorer as an anywidget module: reads the payload, creates the panes and connects them. */

import { entry } from "../base/maps";
import { batch, effect, on, onChange } from "../base/signals";
import { inSlices } from "../base/slices";
import { textView } from "../code/editor";
import { isQuick, preparing } from "../code/listing";
import { CodePane } from "../code/pane";
import { linkScrolling } from "../code/scrolling";
import { SourcePane } from "../code/source";
import { keepState } from "../host/keep";
import type { Host, WidgetModel } from "../host/model";
import { loadPart } from "../host/parts";
import {
  adviceOf,
  beforeOf,
  changesOf,
  checkOf,
  compiledOf,
  failureOf,
  laterOf,
  onPayload,
  payloadOf,
  questionOf,
  restOf,
  speedOf,
  switchesOf,
  syncState,
  viewOf,
} from "../host/sync";
import { Matches } from "../model/changes";
import { exchangesIn } from "../model/exchanges";
import type { Model } from "../model/model";
import { overviewOf } from "../model/overview";
import type { Switches } from "../model/switches";
import type { Work } from "../model/work";
import { CardsPane } from "../panes/cards";
import { InspectorPane } from "../panes/inspector";
import { OverviewPane } from "../panes/overview";
import { questionsOf, Rail } from "../panes/rail";
import { ResidualsPane } from "../panes/residuals";
import { type Other, type Selection, type Side, State, type View } from "../state/state";
import sheet from "../styles/style.css";
import { h, onResize } from "../ui/dom";
import { focused } from "../ui/focus";
import { frame, helpSheet, note, onKeys } from "../ui/frame";
import { FullScreen } from "../ui/full";
import { guarded, type Listing, later, type Pane, reasonOf } from "../ui/pane";
import { addSheet } from "../ui/sheet";
import { splitter } from "../ui/splitter";
import { Waiting } from "../ui/waiting";
import type { Changes } from "../wire/explorer.generated";
import { hasPrograms } from "../wire/schema";
import { isLarge, Parts } from "./parts";
import { Presenting } from "./presenting";
import { modelIn } from "./reading";

/** Up to this many equations, the switches are requested before they are shown. */
const AT_ONCE = 500;

/**
 * In an explorer narrower than NARROW, panes are stacked, except two stages; below SLIM, those too; from WIDE on, the others are
 * beside the question's pane and not below it. In pixels.
 */
const [SLIM, NARROW, WIDE] = [600, 760, 1180];

/** The views for which there is a class that arranges the panes. */
const ARRANGED: readonly View[] = [
  "overview",
  "motion",
  "lines",
  "diff",
  "kept",
  "derived",
  "cost",
  "what-if",
];

/** Up to this many equations, the switches and the advice on the peak are computed before they are shown. */
const ADVISED = 3000;

function mount(root: HTMLElement, widget: WidgetModel, state: State): () => void {
  // Before the panes: they are shown, and those of the stages created, before the others follow.
  const arranging = [
    effect(() => showView()),
    effect(
      on(
        () => {
          const { view, shown, form, compared, fullParams, hasGroups } = state;
          return [view, shown, form, compared, fullParams, hasGroups];
        },
        () => showCodes(),
      ),
    ),
  ];
  const parts = new Parts(root, widget, state);
  const keys = helpSheet("keys", () => parts.load("help"));
  const player = parts.player((stage, side) => codePane(state, [stage], side, root));
  const full = new FullScreen(root);
  const presenting = new Presenting(root, state, full, questionsOf(state));
  const rail = guarded(
    "rail",
    () => new Rail(state, full.button, keys.toggle, player.toggle, () => parts.load("search")),
  );
  const large = isLarge(state.model);
  const seenIn = (...views: View[]) => ({ isSeen: () => views.includes(state.view), isLarge: large });
  const residuals = guarded("residuals", () => new ResidualsPane(state), seenIn("kept"));
  const costs = parts.costs(seenIn("cost").isSeen);
  const memory = parts.memory(seenIn("cost", "what-if").isSeen);
  const whatIf = parts.whatIf(seenIn("what-if").isSeen);
  const changes = state.other && changesOf(widget);
  const diff = state.other && changes && parts.diff(state.other, changes, seenIn("diff").isSeen);
  const changed = changes && parts.changes(changes);
  const inspector = guarded("inspector", () => new InspectorPane(state), {
    isSeen: () => state.extras.has("details"),
  });
  const source = guarded("source", () => new SourcePane(state));
  const overview = guarded("overview", () => new OverviewPane(state, () => parts.load("time")));
  const motion = parts.motion(seenIn("motion").isSeen);
  const cards = guarded("cards", () => new CardsPane(state));
  const compilation = compiledOf(widget);
  const codes = h("div.jv-codes.jv-flex");
  const between = splitter(codes, "column", "--jv-right");
  const code = new Map<Side, { key: string; pane: Pane; of: State }>();
  const showCodes = () => {
    // Hidden panes are created when they become visible.
    if (!state.showsStages) return;
    for (const side of ["left", "right"] as const) {
      const shown = shownAt(state, side);
      const { stages } = shown;
      const isCompiled = shown.state === state && stages.includes(state.compiled);
      const isGraph = !isCompiled && !state.compared && state.form[side] === "graph";
      // Both fold repeated layers, which are known a moment later.
      const folds = shown.state.model.view.has_groups ? "" : "unfolded ";
      const version = state.compared ? `${side} of two ` : "";
      const listed = isCompiled ? "compiled" : `${folds}${version}${stages.join()} ${state.fullParams}`;
      const key = isGraph ? `${folds}graph ${stages.join()}` : listed;
      const before = code.get(side);
      if (before?.key === key) continue;
      const hadFocus = before?.pane.element.contains(focused(root));
      before?.pane.destroy?.();
      before?.pane.element.remove();
      code.delete(side);
      if (stages.length === 0) continue;
      const pane = isGraph
        ? parts.graph(stages, side)
        : isCompiled
          ? parts.compiled(compilation, side)
          : codePane(shown.state, stages, side, root);
      if (side === "left") codes.prepend(pane.element);
      else codes.append(pane.element);
      code.set(side, { key, pane, of: shown.state });
      // Keep the focus in the pane that a key press has replaced.
      if (hadFocus) {
        const keyed = pane.element.querySelector<HTMLElement>(".cm-content, .jv-graph-tree");
        (keyed ?? root).focus({ preventScroll: true });
        if (!keyed) pane.focus?.();
      }
    }
    const right = code.get("right")?.pane.element;
    if (right) right.before(between);
    else between.remove();
  };

  const panes = [
    ...[
      overview,
      motion,
      ...(diff ? [diff] : []),
      residuals,
      costs,
      whatIf,
      memory,
      ...(changed ? [changed] : []),
    ],
    ...[cards, source, inspector],
  ];
  const main = h("div.jv-main.jv-fills");
  main.append(
    player.element,
    ...panes.map((pane) => pane.element),
    splitter(main, "row", "--jv-low"),
    splitter(main, "column", "--jv-side"),
  );
  residuals.element.after(codes);
  root.replaceChildren(rail.element, main, keys.sheet);
  const isOutline = !hasPrograms(state.model.view);
  const outline = isOutline ? new Waiting(state.rest, "Deriving the programs…") : null;
  if (outline) main.append(outline.element);
  root.classList.toggle("is-outline", isOutline);

  const step = (by: 1 | -1) => code.get(state.side)?.pane.step?.(by) ?? false;
  /** What each key does, if no pane has handled it; false if that is nothing. */
  const actions: Record<string, () => unknown> = {
    h: () => state.arrange(state.view === "overview" ? "kept" : "overview"),
    w: full.toggle,
    p: presenting.toggle,
    i: () => state.open("details"),
    r: player.toggle,
    f: () => residuals.focus?.(),
    m: () => {
      if (state.view !== "what-if") state.arrange("cost");
      memory.focus?.();
    },
    g: () => state.showAs(state.side, state.form[state.side] === "code" ? "graph" : "code"),
    l: () => state.compareWithJvp(),
    s: () => state.toggleLinking(),
    c: () => state.other !== null && state.compare(!state.compared),
    e: () => state.toggleParams(),
    v: () => state.toggleColours(),
    "/": () => rail.focus?.(),
    "?": keys.toggle,
    escape: () => (keys.sheet.open ? keys.sheet.close() : state.clear()),
    arrowdown: () => step(1),
    arrowup: () => step(-1),
  };
  const act = (event: KeyboardEvent) => {
    // These keys are the overview's.
    if (state.view === "overview" && ["f", "ArrowDown", "ArrowUp"].includes(event.key)) state.show({});
    // A scrolling pane handles its own arrow keys.
    if (event.key.startsWith("Arrow") && (event.target as Element).closest(".jv-scroll")) return false;
    const action = actions[event.key.toLowerCase()];
    if (action) return action() !== false;
    const stage = Number(/^Digit([1-9])$/.exec(event.code)?.[1] ?? 0) - 1;
    if (stage < 0 || stage > state.compiled) return false;
    state.showStages([stage], event.shiftKey);
    return true;
  };
  const unkey = onKeys(root, act, (event) => undoOrRedo(event, state.switches));

  const unlink = linkScrolling(codes, state, (side) => {
    const shown = code.get(side);
    if (!shown) return null;
    const { pane, of } = shown;
    const listing = pane.listing ?? null;
    return { ...pane, listing: listing && of !== state ? inTermsOf(listing, of) : listing };
  });
  const unsync = syncState(widget, state);
  const askRest = () => askLater(widget, state);
  let compiled = "";
  /** Passes what other panes show of the compiled program. */
  const takeCompiled = () => {
    const text = compilation.whole.read();
    if (text === compiled) return;
    compiled = text;
    const found = exchangesIn(state.model, text);
    if (found !== null) state.exchange(found);
    state.switches.takeLine();
  };
  const showView = () => {
    for (const view of ARRANGED) root.classList.toggle(`is-${view}`, state.view === view);
    root.classList.toggle("is-stages", state.view === "" && !state.compared);
    root.classList.toggle("is-versions", state.view === "" && state.compared);
    for (const extra of ["details", "stages"] as const)
      root.classList.toggle(`shows-${extra}`, state.extras.has(extra));
  };
  const unsize = onResize(root, (width) => {
    root.classList.toggle("is-narrow", width > 0 && width < NARROW);
    root.classList.toggle("is-slim", width > 0 && width < SLIM);
    root.classList.toggle("is-wide", width >= WIDE);
  });
  const isToCheck = () => state.checked === null && !isWaiting(state) && state.switches.now;
  const stops = [
    ...arranging,
    effect(on(() => [state.isWhole, state.view, isToCheck()], askRest)),
    // Also followed while no pane shows it.
    effect(on(() => compilation.whole.read(), takeCompiled)),
    effect(() => void compilation.block.progress),
    onChange(
      () => state.advice.read(),
      (text) => text !== "" && state.switches.ask(),
    ),
    // The question begins with the rules; closing them shows the programs beside each other.
    onChange(
      () => state.shown,
      () => state.view === "derived" && player.start(),
    ),
    ...(state.other ? selectInBoth(state, state.other) : []),
  ];
  // Request these while there is a kernel, so that the notebook has them when it is opened without one.
  const [first, end] = state.model.view.stages[0]?.equations ?? [0, 0];
  if (!isOutline && end - first <= AT_ONCE) state.switches.ask();
  return () => {
    unkey();
    unsize();
    unlink();
    for (const stop of [unsync, ...stops]) stop();
    outline?.destroy();
    state.switches.destroy();
    presenting.destroy();
    full.destroy();
    for (const pane of [player, rail, ...panes, ...[...code.values()].map((c) => c.pane)]) pane.destroy?.();
  };
}

/** Requests the rest once the first panes are drawn, slowest last. */
function askLater(widget: WidgetModel, state: State): void {
  const [first, end] = state.model.view.stages[0]?.equations ?? [0, 0];
  const { advice, check, switches, model } = state;
  if (!model.view.is_whole || widget.comm_live === false || !widget.send) return;
  const isAdvised = end - first <= ADVISED;
  const ask = (work: Work) => work.read() === "" && work.progress.state === "none" && work.ask();
  setTimeout(() => {
    if (isWaiting(state)) return;
    if (isAdvised && switches.table === null && !switches.isUnderWay) switches.ask();
    if (state.checked === null) ask(check);
    if (isAdvised) ask(advice);
  }, 300);
}

/** Whether the user waits for the switches: a kernel may work on several requests at once, and then takes longer for each. */
const isWaiting = ({ switches, view }: State) => switches.isWaitedFor && view === "what-if";

/** What a side shows: stages of this version, or on the left the same stage of the previous version. */
function shownAt(state: State, side: Side): { state: State; stages: readonly number[] } {
  const { other } = state;
  if (!state.compared || other === null) return { state, stages: state.shown[side] };
  const stages = state.shown.left;
  if (side === "right") return { state, stages };
  const keys = stages.map((i) => state.model.view.stages[i]?.key);
  const there = keys.map((key) => other.state.model.stageNamed(key ?? ""));
  return { state: other.state, stages: there.filter((i) => i >= 0) };
}

/** Stages as code, synchronously if that is fast. */
function codePane(state: State, stages: readonly number[], side: Side, root: HTMLElement): Pane {
  const make = () => new CodePane(state, stages, side, root);
  const { model, fullParams } = state;
  if (isQuick(model, stages)) return guarded("code", make);
  return later("code", async (isWanted) => {
    await inSlices(preparing(model, stages, fullParams), isWanted);
    return make;
  });
}

const translated = new WeakMap<Listing, Listing>();

/** The other version's listing, with its equations mapped to those of this one. */
const inTermsOf = (listing: Listing, { other }: State): Listing =>
  entry(translated, listing, () => ({
    ...listing,
    rows: listing.rows.map((there) => there.map((row) => other!.matches.of(row)).filter((row) => row >= 0)),
  }));

/** Synchronizes the selection of two versions; the inspector follows the one where the user selected. Returns functions to stop. */
function selectInBoth(state: State, other: Other): (() => void)[] {
  /** The selection that was made here, as that of the other version. */
  let mirrored: Selection | null = null;
  const follow = (from: State, to: State) => {
    if (!state.compared || from.selection === mirrored) return;
    const there = [...from.selection.rows]
      .map((row) => from.other!.matches.of(row))
      .filter((row) => row >= 0);
    if (there.length > 0) to.selectRows(there);
    else if (to.selection.rows.size > 0) to.clear();
    mirrored = to.selection;
    state.inspected = from;
  };
  const followed = (from: State, to: State) =>
    onChange(
      () => from.selection,
      () => follow(from, to),
    );
  return [followed(state, other.state), followed(other.state, state)];
}

/** Ctrl+Z undoes a change of the switches, and Ctrl+Shift+Z or Ctrl+Y redoes it; returns whether there was one. */
function undoOrRedo(event: KeyboardEvent, switches: Switches): boolean {
  const key = event.key.toLowerCase();
  const isRedo = key === "y" || (key === "z" && event.shiftKey);
  // Text fields have their own undo.
  if ((key !== "z" && !isRedo) || (event.target as Element).closest("input, textarea")) return false;
  if (isRedo ? !switches.canRedo : !switches.canUndo) return false;
  if (isRedo) switches.redo();
  else switches.undo();
  return true;
}

/** Renders the widget: an explorer, or a stepper, whose code is a separate part. */
function render(host: Host): () => void {
  return host.model.get("_shows") === "stepper" ? renderStepper(host) : renderExplorer(host);
}

function renderStepper(host: Host): () => void {
  const [root, loosen] = frame(host, "stepper");
  let isGone = false;
  let unmount = () => {};
  const show = async () => {
    addSheet(host.el, sheet);
    try {
      const part = await loadPart<typeof import("../host/parts/stepper")>(host.model, "stepper");
      addSheet(host.el, sheet); // by now it may be in a shadow tree
      addSheet(host.el, part.sheet);
      unmount = await part.fillStepper(root, host.model, textView);
      if (isGone) unmount();
    } catch (error) {
      console.error(error);
      root.replaceChildren(note(`The stepper could not be shown: ${reasonOf(error)}`));
    }
  };
  void show();
  return () => {
    isGone = true;
    loosen();
    unmount();
  };
}

function renderExplorer(host: Host): () => void {
  const { model, el } = host;
  const [root, loosen] = frame(host, "explorer");
  let unmount = () => {};
  let state: State | null = null;
  const derived = viewOf(model);
  let waiting: Waiting | null = null;
  const clear = () => {
    waiting?.destroy();
    waiting = null;
    unmount();
    unmount = () => {};
    state = null;
  };
  const say = (id: string, text: string) => {
    clear();
    root.replaceChildren(note(text, id));
  };
  const fail = (error: unknown) => {
    console.error(error);
    say("failed", `The explorer could not be shown: ${reasonOf(error)}`);
  };
  /** The blocks currently shown: of the programs and of the previous version. */
  let shown: [DataView | null, DataView | null] = [null, null];
  const present = ([own, other]: Model[], payload: DataView, earlier: DataView | null) => {
    if (state && shown[0] === payload && shown[1] === earlier) {
      state.complete();
      return;
    }
    const outline = state && !hasPrograms(state.model.view) ? state : null;
    const hadFocus = root.contains(focused(root));
    clear();
    addSheet(el, sheet); // by now it may be in a shadow tree
    state = new State(
      own!,
      switchesOf(model),
      hasPrograms(own!.view) ? restOf(model) : derived,
      adviceOf(model),
      checkOf(model),
      speedOf(model),
      questionOf(model, "find", "found"),
      questionOf(model, "address", "address"),
    );
    state.hasBegun = outline !== null;
    setBeside(state, other, changesOf(model));
    shown = [payload, earlier];
    const made = state;
    unmount = batch(() => mount(root, model, made));
    // What was asked before the programs were there.
    const kept = overviewOf(own!).kept[outline?.opened ?? -1];
    if (outline && outline.view !== state.view) state.arrange(outline.view);
    if (kept && state.view === "kept") state.openKept(kept);
    if (hadFocus) root.focus({ preventScroll: true });
    if (!own!.view.is_whole) state.rest.ask();
  };
  let turn = 0;
  const show = () => {
    const mine = ++turn;
    const isLatest = () => mine === turn;
    try {
      addSheet(el, sheet);
      const payload = payloadOf(model);
      if (payload !== null) {
        const earlier = beforeOf(model);
        const models = [modelIn(payload, laterOf(model)), ...(earlier ? [modelIn(earlier)] : [])];
        if (models.some((each) => each instanceof Promise)) {
          if (state === null) say("loading", "Reading…");
          Promise.all(models)
            .then((all) => isLatest() && present(all, payload, earlier))
            .catch((error) => isLatest() && fail(error));
        } else present(models as Model[], payload, earlier);
      } else if (failureOf(model)) say("failed", `The explorer could not be shown: ${failureOf(model)}`);
      else {
        clear();
        waiting = new Waiting(derived, "Deriving the programs…", "loading");
        root.replaceChildren(waiting.element);
        derived.ask();
      }
    } catch (error) {
      fail(error);
    }
  };
  const stop = onPayload(model, show);
  show();
  return () => {
    turn++;
    stop();
    loosen();
    clear();
  };
}

/** Attaches the previous version to a state, if there is one. */
function setBeside(state: State, model: Model | undefined, changes: Changes | null): void {
  if (model === undefined || changes === null) return;
  const before = new State(model);
  const match = (isAfter: boolean) => new Matches(changes, before.model, state.model, isAfter);
  state.other = { state: before, matches: match(true), mark: "is-added" };
  before.other = { state, matches: match(false), mark: "is-removed" };
}

/** For pages that load parts themselves. */
export { loadPart };
export default { initialize: keepState, render };
