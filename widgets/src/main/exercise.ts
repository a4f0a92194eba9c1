/**
 * Exercises on a page without a kernel. `jaxviz/teach/static.py` writes the forms; this checks the answers and shows hidden content on
 * request. It is a classic script, since a page opened from a file cannot load modules.
 */

import { type Given, graded } from "../model/grading";
import style from "../styles/exercise.css";
import { h } from "../ui/dom";
import type { Said, Sheet } from "../wire/exercise.generated";

const SIGNS = { right: "✓", wrong: "✗", missed: "✗", note: "·" };

export function decoded(text: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
}

/** A sentence, with text between backticks as code. */
function words(text: string): (Node | string)[] {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, i) => (i % 2 ? h("code", part) : part)) : [text];
}

function shown({ isRight, headline, points, note }: Said): HTMLElement {
  const start = isRight === null ? "" : isRight ? "Right. " : "Not yet. ";
  const rows = points.map(({ mark, what, why }) =>
    h(
      "tr",
      { class: `jvx-${mark}` },
      h("td", `${SIGNS[mark]} ${mark === "note" ? "" : mark}`),
      h("td", ...words(what)),
      h("td", ...words(why)),
    ),
  );
  return h(
    "div",
    { class: `jvx-said jvx-${isRight === null ? "note" : isRight ? "right" : "wrong"}` },
    start && h("strong", start),
    ...words(headline),
    rows.length > 0 && h("table", h("tbody", ...rows)),
    note && (note.includes("\n") ? h("pre", note) : h("div", ...words(note))), // multiple lines are code
  );
}

/** The selected or typed answer; null if there is none. */
function given(form: HTMLFormElement): Given | null {
  const fields = Array.from(form.querySelectorAll("input"));
  const ticked = fields.flatMap((field, i) => (field.checked ? [i] : []));
  if (fields[0]!.type === "checkbox") return ticked;
  return fields[0]!.type === "radio" ? (ticked[0] ?? null) : fields[0]!.value.trim() || null;
}

/** What became of each form that checks answers: null until the first answer. */
const tries = new Map<HTMLFormElement, "first" | "later" | "wrong" | null>();
const SQUARES = { first: "■", later: "◪", wrong: "□" };

function count(form: HTMLFormElement, isRight: boolean | null): void {
  const before = tries.get(form);
  if (isRight === null || before === "first" || before === "later") return;
  tries.set(form, isRight ? (before === "wrong" ? "later" : "first") : "wrong");
  for (const box of document.querySelectorAll<HTMLElement>("div.jvx-result")) showResult(box);
}

/** How many forms of the page were right at once, with a button that copies that, and a square for each form. */
function showResult(box: HTMLElement): void {
  const all = Array.from(tries.values());
  const n = all.filter((state) => state === "first").length;
  const text = `${n} of ${all.length} right at the first try`;
  const squares = all.map((state) => SQUARES[state ?? "wrong"]).join("");
  const copy = h("button", { type: "button" }, "Copy the result");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(`${box.dataset["title"]}\n${squares}\n${text}`);
    copy.textContent = "Copied";
  });
  box.replaceChildren(h("p", `${text}.`), h("p", { "aria-hidden": "true" }, squares), copy);
}

function attend(form: HTMLFormElement): void {
  const { grading, blank, hints, answer }: Sheet = JSON.parse(decoded(form.dataset["sheet"]!));
  if (grading) tries.set(form, null);
  const said = h("output", { role: "status" });
  const say = (verdict: Said) => said.replaceChildren(shown(verdict));
  const remark = (headline: string) => say({ isRight: null, headline, points: [], note: "" });

  // No selection may be an answer or an accident, so the first time it does not count.
  let isWarned = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!grading) return;
    const answered = given(form);
    const isEmpty = Array.isArray(answered) && answered.length === 0;
    if (answered === null || (isEmpty && !isWarned)) remark(blank);
    else {
      const verdict = graded(grading, answered);
      say(verdict);
      count(form, verdict.isRight);
    }
    isWarned = isEmpty;
  });

  let told = 0;
  const hint = () => {
    if (told < hints.length) remark(`Hint ${told + 1} of ${hints.length}: ${hints[told++]}`);
    else remark("There are no more hints.");
  };
  const check = grading && h("button.jvx-check", { type: "submit" }, "Check");
  const help = hints.length > 0 && h("button", { type: "button", onclick: hint }, "Hint");
  const reveal = () => {
    say(answer);
    count(form, false);
  };
  const tell = h("button", { type: "button", onclick: reveal }, "Reveal");
  form.append(h("p.jvx-buttons", check, help, tell), said);
}

function unfold(fold: HTMLDetailsElement): void {
  const fill = () => {
    const content = h("div");
    content.innerHTML = decoded(fold.dataset["content"]!); // trusted: part of the page
    fold.append(content);
  };
  fold.addEventListener("toggle", fill, { once: true });
}

export function start(): void {
  document.head.append(h("style", style));
  tries.clear();
  for (const form of document.querySelectorAll<HTMLFormElement>("form.jvx")) attend(form);
  for (const box of document.querySelectorAll<HTMLElement>("div.jvx-result")) showResult(box);
  for (const fold of document.querySelectorAll<HTMLDetailsElement>("details.jvx")) unfold(fold);
}

if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
else start();
