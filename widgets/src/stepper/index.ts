/**
 * The stepper as a widget: source, jaxpr and values side by side, of `jaxviz.step`. A module of its own: `jaxviz/features/debugger/widget.py`.
 *
 * What is shown is in traits, and so is there without a kernel. What is asked of the kernel is sent as messages, when somebody presses something.
 */

import type { Holder } from "../host/held";
import { addSheet } from "../host/sheet";
import { blockOf } from "../host/sync";
import { keepFocus } from "../main/focus";
import sheet from "../styles/stepper.css";
import { h } from "../ui/dom";
import { splitter } from "../ui/splitter";
import { Breaks } from "./breaks";
import { BACK, Bar, Crumbs, KEYS, MOVES, Rail } from "./head";
import { Listing } from "./listing";
import { programsIn, Session } from "./session";
import { Source } from "./source";
import { described, Values } from "./values";
import { type Shown, StepperState } from "./view";

function mount(root: HTMLElement, model: Holder, state: StepperState): () => void {
  const session = new Session(model);
  const said = h("p", {
    class: "jv-step-said",
    role: "status",
    "aria-live": "polite",
    "data-testid": "step-said",
  });
  const notice = h("div", { class: "jv-step-notice", "data-testid": "step-notice", hidden: true });
  const failure = h("div", {
    class: "jv-step-failure",
    role: "alert",
    "data-testid": "step-failure",
    hidden: true,
  });
  const keys = h("dialog", { class: "jv-help", "aria-label": "keys", "data-testid": "step-key-sheet" });
  keys.append(
    h("dl", {}, ...KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("button", { type: "button", class: "jv-button", onclick: () => keys.close() }, "Close"),
  );
  const toggleKeys = () => (keys.open ? keys.close() : keys.show());

  const move = (what: string) => {
    if (!session.off && !(BACK.has(what) ? state.isStart : state.stop.isDone)) session.ask(what);
  };
  const show = (shown: Shown) => {
    state.show(shown);
    update();
  };
  const pathTo = () =>
    state.levels.map(({ index, body, level }, depth) => {
      // Within a loop that the run is not in, an equation is gone to in the first iteration.
      const loop = ["scan", "while"].includes(state.levels[depth]!.row.p);
      const length = Number(state.levels[depth]!.row.q?.find((q) => q.startsWith("length="))?.slice(7) ?? 1);
      const isReverse = state.levels[depth]!.row.q?.includes("reverse=True") ?? false;
      return [index, body, loop ? (level?.iteration ?? (isReverse ? length - 1 : 0)) : null];
    });

  const listing = new Listing(state, {
    look: (name) => session.ask("look", { stage: state.shown.stage, name }),
    runTo: (index) => session.ask("goto", { stage: state.shown.stage, path: pathTo(), index }),
    toggleBreak: (index) => {
      const number = state.breakAtRow(index);
      if (number >= 0) session.ask("unbreak", { number });
      else session.ask("break", { stage: state.shown.stage, path: state.shown.way, index });
    },
    open: (index, body) => {
      show({ stage: state.shown.stage, way: [...state.shown.way, [index, body]] });
      listing.element.focus({ preventScroll: true });
    },
    selected: () => source.update(),
  });
  const source = new Source(state, {
    toggleBreak: (file, line) => {
      const number = state.breakAtLine(file, line);
      if (number >= 0) session.ask("unbreak", { number });
      else session.ask("break", { file, line });
    },
    select: (file, line) => {
      state.selected = -1;
      state.line = state.line === `${file}:${line}` ? "" : `${file}:${line}`;
      source.update(false);
      const first = state.program.rows.findIndex((row) => row.a?.[0] === file && row.a[1] === line);
      state.selected = state.line ? first : -1;
      listing.update();
      state.selected = -1;
      listing.update(false);
    },
  });
  const values = new Values(state, {
    look: (name) => session.ask("look", { stage: state.shown.stage, name }),
    unlook: (stage, name) => session.ask("unlook", { stage, name }),
  });
  const breaks = new Breaks(
    state,
    (condition) => session.ask("break", condition),
    (number) => session.ask("unbreak", { number }),
  );
  const rail = new Rail(state, show, (stage, index) => session.ask("goto", { stage, path: [], index }));
  const bar = new Bar(session, move, toggleKeys);
  const crumbs = new Crumbs(state, show, (depth, iteration) => {
    if (depth < 0 || depth === lastLoop()) session.ask("to", { iteration });
    else {
      const path = state.stop.path
        .slice(0, depth + 1)
        .map(({ index, body, iteration: at }, d) => [index, body, d === depth ? iteration : at]);
      session.ask("goto", { stage: state.stop.stage, path, index: 0 });
    }
  });
  const lastLoop = () => state.stop.path.map((level) => level.iteration !== null).lastIndexOf(true);

  const left = h("div", { class: "jv-step-left" }, source.element, breaks.element);
  const middle = h(
    "section",
    { class: "jv-pane jv-step-jaxpr", "aria-label": "jaxpr", "data-testid": "step-jaxpr" },
    h("div", { class: "jv-pane-head jv-step-crumbs" }, crumbs.element),
    listing.element,
  );
  const right = h("div", { class: "jv-step-right" });
  right.append(middle, splitter(right, "column", "--jv-step-values"), values.element);
  const columns = h("div", { class: "jv-step-columns" });
  columns.append(left, splitter(columns, "column", "--jv-step-rest"), right);
  root.replaceChildren(
    h(
      "div",
      { class: "jv-step-head" },
      h("strong", { class: "jv-title jv-cut", title: state.programs.function }, state.programs.function),
      rail.element,
    ),
    bar.element,
    failure,
    notice,
    columns,
    said,
    keys,
  );

  let lastSaid = "";
  let lastOff = "";
  const update = () => {
    lastOff = session.off;
    const isOff = lastOff !== "";
    rail.update(isOff);
    bar.update(state);
    crumbs.update(isOff);
    listing.update();
    source.update();
    breaks.update(isOff);
    values.box.disabled = isOff;
    root.classList.toggle("is-peeking", !state.isHere);
    tell();
  };
  const tell = () => {
    const { stop } = state;
    root.setAttribute("aria-busy", String(session.since !== null));
    const failed = session.failure;
    failure.hidden = failed === null;
    failure.replaceChildren(
      ...(failed
        ? [failed.kind ? h("strong", {}, `${failed.kind}. `) : "", h("span", {}, failed.message)]
        : []),
    );
    const notes = [session.off, ...stop.notes].filter((note) => note !== "");
    notice.hidden = notes.length === 0;
    notice.replaceChildren(...notes.map((note) => h("p", {}, note)));
    const row = stop.index > 0 && state.isHere ? state.program.rows[stop.index - 1] : undefined;
    const value = stop.results[0]?.value;
    const text = [
      stop.said,
      stop.hit && `stopped at ${stop.hit}`,
      row && `ran ${row.p}`,
      value && `${stop.results[0]!.name}: ${described(value)}`,
    ]
      .filter(Boolean)
      .join("; ");
    if (text !== lastSaid) said.textContent = lastSaid = text;
  };
  const onStop = () => {
    const stop = session.stop;
    if (stop === null) return;
    state.arrive(stop);
    values.update();
    update();
  };
  const onKey = (event: KeyboardEvent) => {
    // JupyterLab listens for keys on the whole page: `b` would put a cell below.
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    const isTyping = target.matches("input[type=text], input[type=number], select, textarea");
    if (event.key === "Escape") {
      if (keys.open) keys.close();
      else if (isTyping) root.focus({ preventScroll: true });
      else if (!state.isHere) show(state.here);
      else {
        state.selected = -1;
        state.line = "";
        update();
      }
    } else if (isTyping) return;
    else if (event.key === "?") toggleKeys();
    else if (event.key === "/") values.box.focus();
    else if (event.key === "g") crumbs.focus();
    else if (event.key === "a") breaks.focus();
    else {
      const found =
        MOVES.find((m) => m.key === event.key) ??
        MOVES.find((m) => m.key === event.key.toLowerCase() && !event.shiftKey);
      if (!found) return;
      // A key that is held down goes as fast as the kernel does.
      if (!(event.repeat && session.since !== null)) move(found.do);
    }
    event.preventDefault();
  };
  root.addEventListener("keydown", onKey);
  session.listen(() => {
    if (session.off !== lastOff) update();
    else tell();
  });
  model.on("change:stop", onStop);
  model.on("change:failure", tell);
  values.update();
  update();
  return () => {
    root.removeEventListener("keydown", onKey);
    model.off("change:stop", onStop);
    model.off("change:failure", tell);
    session.destroy();
    bar.destroy();
    listing.destroy();
  };
}

async function render({ model, el }: { model: Holder; el: HTMLElement }): Promise<() => void> {
  const root = h("div", {
    class: "jaxviz jv-stepper",
    "data-testid": "stepper",
    role: "group",
    tabindex: -1,
    "aria-label": "jaxviz stepper",
  });
  const height = model.get("height");
  root.style.height = `${typeof height === "number" && height > 0 ? height : 560}px`;
  el.append(root);
  addSheet(el, sheet);
  const loosen = keepFocus(root);
  let unmount = () => {};
  try {
    const block = blockOf(model.get("payload"));
    const stop = model.get("stop");
    if (block === null || typeof stop !== "string" || stop === "")
      throw new Error("there is nothing to show");
    const programs = await programsIn(block);
    addSheet(el, sheet); // which may by now be in a shadow tree
    unmount = mount(root, model, new StepperState(programs, JSON.parse(String(model.get("stop")))));
  } catch (error) {
    console.error(error);
    root.replaceChildren(
      h(
        "p",
        { class: "jv-message" },
        `The stepper could not be shown: ${error instanceof Error ? error.message : error}`,
      ),
    );
  }
  return () => {
    loosen();
    unmount();
  };
}

export default { render };
