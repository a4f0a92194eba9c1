/**
 * The stepper of `jaxviz.step`: source, jaxpr and values side by side. The messages are defined in `jaxviz/features/debugger/messages.py`.
 * The state is in traits, so it is available without a kernel. Requests to the kernel are sent as messages.
 */

import { effect, on } from "../base/signals";
import type { TextView } from "../code/editor";
import type { WidgetModel } from "../host/model";
import { blockOf } from "../host/sync";
import { unzipped } from "../host/zip";
import { button, h, heading } from "../ui/dom";
import { helpSheet, onKeys } from "../ui/frame";
import { splitter } from "../ui/splitter";
import type { Mark, Programs } from "../wire/stepper.generated";
import { Breaks } from "./breaks";
import { BACK, Bar, Crumbs, KEYS, MOVES, Rail } from "./head";
import { Listing } from "./listing";
import { parsed, Session } from "./session";
import { Source } from "./source";
import { described, Values } from "./values";
import { StepperState } from "./view";

/** Fills the element of a stepper, and returns a function to clean up. */
export async function fillStepper(root: HTMLElement, model: WidgetModel, textView: TextView) {
  const block = blockOf(model.get("payload"));
  if (block === null || !model.get("stop")) throw new Error("nothing to show");
  const programs = JSON.parse(new TextDecoder().decode(await unzipped(block))) as Programs;
  return mount(root, model, new StepperState(programs, JSON.parse(String(model.get("stop")))), textView);
}

function mount(root: HTMLElement, model: WidgetModel, state: StepperState, textView: TextView): () => void {
  const session = new Session(model, (stop) => state.arrive(stop));
  const { ask } = session;
  const said = h("p.jv-step-said", { role: "status", "aria-live": "polite", "data-testid": "step-said" });
  const notice = h("div.jv-step-notice", { "data-testid": "step-notice", hidden: true });
  const failure = h("div.jv-step-failure", { role: "alert", "data-testid": "step-failure", hidden: true });
  const keys = helpSheet("step-key-sheet", async () => ({ KEYS }));
  const move = (what: string) => {
    if (!session.off && !(BACK.has(what) ? state.isStart : state.stop.isDone)) ask(what);
  };
  const unbreak = (number: number) => ask("unbreak", { number });
  const toggleBreak = (number: number, condition: Record<string, unknown>) =>
    number >= 0 ? unbreak(number) : ask("break", condition);
  const look = (name: string) => ask("look", { stage: state.shown.stage, name });

  const listing = new Listing(
    state,
    {
      look,
      runTo: (index) => ask("goto", { stage: state.shown.stage, path: state.pathTo(), index }),
      toggleBreak: (index) => {
        const { stage, way } = state.shown;
        toggleBreak(state.breakAtRow(index), { stage, path: way, index });
      },
      open: (index, body) => {
        const { stage, way } = state.shown;
        state.show({ stage, way: [...way, [index, body]] });
        listing.focus();
      },
    },
    root,
    textView,
  );
  const source = new Source(state, (file, line) =>
    toggleBreak(state.breakAtLine(file, line), { file, line }),
  );
  const values = new Values(state, { look, unlook: (stage, name) => ask("unlook", { stage, name }) });
  const breaks = new Breaks(state, (condition) => ask("break", condition), unbreak);
  const mark = parsed<Mark>(model.get("mark"));
  const rail = new Rail(state, (stage, index) => ask("goto", { stage, path: [], index }), mark);
  const there = button("Step there", () => ask("there"), { "data-testid": "step-there" });
  const marked = h(
    "p.jv-marked.jv-fixed.jv-wraps.jv-row",
    { "data-testid": "marked", hidden: mark === null },
    h("span.jv-birth", { "aria-hidden": "true" }),
    mark?.text ?? "",
    there,
  );
  const bar = new Bar(state, session, move, keys.toggle);
  const lastLoop = () => state.stop.path.map((level) => level.iteration !== null).lastIndexOf(true);
  const crumbs = new Crumbs(state, (depth, iteration) => {
    if (depth < 0 || depth === lastLoop()) ask("to", { iteration });
    else {
      const path = state.stop.path
        .slice(0, depth + 1)
        .map(({ index, body, iteration: at }, d) => [index, body, d === depth ? iteration : at]);
      ask("goto", { stage: state.stop.stage, path, index: 0 });
    }
  });

  const left = h("div.jv-step-left.jv-column.jv-fills", source.element, breaks.element);
  const middle = h(
    "section.jv-pane.jv-column.jv-code.jv-step-jaxpr",
    { "aria-label": "jaxpr", "data-testid": "step-jaxpr" },
    h("div.jv-pane-head.jv-ruled.jv-fixed.jv-baseline.jv-step-crumbs", crumbs.element),
    listing.element,
  );
  const right = h("div.jv-step-right.jv-flex");
  right.append(middle, splitter(right, "column", "--jv-step-values"), values.element);
  const columns = h("div.jv-step-columns.jv-flex.jv-fills");
  columns.append(left, splitter(columns, "column", "--jv-step-rest"), right);
  root.replaceChildren(
    h(
      "div.jv-step-all.jv-column.jv-fills",
      h("div.jv-step-head.jv-head-bar", heading(state.programs.title), rail.element),
      marked,
      bar.element,
      failure,
      notice,
      columns,
      said,
      keys.sheet,
    ),
  );

  /** Reports on the run and the kernel. */
  const tell = () => {
    const { stop } = state;
    root.setAttribute("aria-busy", String(session.since !== null));
    const typed: Record<string, { fail(text: string): void }> = { look: values, break: breaks, to: crumbs };
    const { failure: told } = session;
    // An error of the run does not belong to an input field.
    const field = told && !told.kind && typed[told.do];
    for (const part of Object.values(typed)) part.fail(told && part === field ? told.message : "");
    const failed = field ? null : told;
    failure.hidden = failed === null;
    failure.replaceChildren(
      ...(failed ? [failed.kind ? h("strong", `${failed.kind}. `) : "", h("span", failed.message)] : []),
    );
    const notes = [session.off, ...stop.notes].filter((note) => note !== "");
    notice.hidden = notes.length === 0;
    notice.replaceChildren(...notes.map((note) => h("p", note)));
    const row = stop.index > 0 && state.isHere ? state.program.rows[stop.index - 1] : undefined;
    const value = stop.results[0]?.value;
    const text = [
      stop.said,
      stop.hit && `stopped at ${stop.hit}`,
      row && `ran ${row.p}`,
      value && `${stop.results[0]!.name}: ${described(value)}`,
    ];
    // A selection by keyboard is read out with its text.
    say(state.selected >= 0 ? listing.textOf(state.selected) : text.filter(Boolean).join("; "));
  };
  const say = (text: string) => {
    if (text !== said.textContent) said.textContent = text;
  };
  const act = (event: KeyboardEvent): boolean => {
    const target = event.target as HTMLElement;
    const isTyping = target.matches("input[type=text], input[type=number], select, textarea");
    if (event.key === "Escape") {
      if (keys.sheet.open) keys.toggle();
      else if (isTyping) root.focus({ preventScroll: true });
      else if (!state.isHere) state.show(state.here);
      else state.select(-1);
    } else if (isTyping) return false;
    else if (event.key === "?") keys.toggle();
    else if (event.key === "/") values.box.focus();
    else if (event.key === "g") crumbs.focus();
    else if (event.key === "a") breaks.focus();
    else {
      const found =
        MOVES.find((m) => m.key === event.key) ??
        MOVES.find((m) => m.key === event.key.toLowerCase() && !event.shiftKey);
      if (!found) return false;
      // A repeated key waits for the kernel.
      if (!(event.repeat && session.since !== null)) move(found.do);
    }
    return true;
  };
  const fold = () => root.classList.toggle("is-folded", model.get("folded") === true);
  model.on("change:folded", fold);
  fold();
  const unkey = onKeys(root, act);
  const here = () => [state.stop, state.shown, state.selected, state.selectedLine];
  const isOff = () => session.off !== "";
  const stops = [
    effect(
      on(
        () => state.stop,
        () => values.update(),
      ),
    ),
    ...[rail, bar, crumbs, breaks].map((part) => effect(() => part.update(isOff()))),
    effect(() => bar.tick()),
    effect(() => {
      values.box.disabled = there.hidden = isOff();
      root.classList.toggle("is-peeking", !state.isHere);
    }),
    ...[listing, source].map((part) => effect(on(here, () => part.update()))),
    effect(tell),
  ];
  return () => {
    model.off("change:folded", fold);
    unkey();
    for (const stop of stops) stop();
    session.destroy();
    bar.destroy();
    listing.destroy();
  };
}
