// @vitest-environment jsdom
import { beforeEach, expect, test } from "vitest";
import fixture from "../../tests/fixtures/exercises.json";
import { decoded, start } from "../src/main/exercise";
import { type Given, graded, number } from "../src/model/grading";
import type { Said, Sheet } from "../src/wire/exercise.generated";

type Case = { html: string; answers: [Given, Said][] };
const CASES = Object.entries(fixture as unknown as Record<string, Case>);

const by = <T extends Element>(selector: string) => document.querySelector<T>(selector)!;
const said = () => by("output").textContent;
const press = (name: string) =>
  Array.from(document.querySelectorAll("button"))
    .find((b) => b.textContent === name)!
    .click();

function open(name: string): void {
  document.body.innerHTML = (fixture as unknown as Record<string, Case>)[name]!.html;
  start();
}

beforeEach(() => document.head.replaceChildren());

test.each(CASES)("%s is graded as in Python", (_, { html, answers }) => {
  const sheet: Sheet = JSON.parse(decoded(/data-sheet="([^"]*)"/.exec(html)![1]!));
  for (const [given, verdict] of answers) expect(graded(sheet.grading!, given)).toEqual(verdict);
});

test("a number may be a size", () => {
  expect(["12", "1,024", "1.5 kB", "-2 MiB", ".5", "2e3"].map(number)).toEqual([
    12,
    1024,
    1500,
    -2 * 2 ** 20,
    0.5,
    2000,
  ]);
  expect(["", "twelve", "1 2", "3 parsecs", "0x10"].map(number)).toEqual([null, null, null, null, null]);
});

test("a choice is made, checked and explained", () => {
  open("choice");
  press("Check");
  expect(said()).toBe("Select an answer first.");
  document.querySelectorAll("input")[0]!.checked = true;
  press("Check");
  expect(said()).toBe("Not yet. It is not its operand.It would be computed again.");
  document.querySelectorAll("input")[1]!.checked = true;
  by<HTMLFormElement>("form").requestSubmit();
  expect(said()).toBe("Right. its resultThe slope <is> the result.");
});

test("a typed answer is checked, with one hint after the other", () => {
  open("size");
  by<HTMLInputElement>("input").value = "9000";
  press("Check");
  expect(said()).toContain("Not yet. 9000 is too small.");
  press("Hint");
  expect(by("output").innerHTML).toContain("Hint 1 of 2: What is the slope of <code>exp</code>?");
  press("Hint");
  press("Hint");
  expect(said()).toBe("There are no more hints.");
  press("Reveal");
  expect(said()).toBe("The answer: 12,288.Three arrays.");
});

test("an empty selection counts as an answer the second time", () => {
  open("marks");
  press("Check");
  expect(said()).toContain("Nothing is selected");
  press("Check");
  expect(said()).toContain("0 of 3 found. 3 more are saved: ");
  expect(document.querySelectorAll("output tr")).toHaveLength(0); // what is missed has no name before Reveal
  press("Reveal");
  expect(document.querySelectorAll("output tr")).toHaveLength(3);
});

test("code is not checked, and can be revealed", () => {
  open("code");
  expect(Array.from(document.querySelectorAll("button"), (b) => b.textContent)).toEqual(["Hint", "Reveal"]);
  by<HTMLFormElement>("form").requestSubmit();
  expect(said()).toBe("");
  press("Reveal");
  expect(said()).toContain("lambda x: jnp.tanh(x)");
});

test("code of several lines keeps its lines", () => {
  open("lines of code");
  press("Reveal");
  expect(by("output pre").textContent).toContain("def sin(x):\n    return jnp.sin(x)");
});

test("a fold is filled when it is opened", () => {
  document.body.innerHTML = `<details class="jvx" data-content="${btoa("<pre>x**4</pre>")}"><summary>A solution</summary></details>`;
  start();
  expect(document.querySelector("pre")).toBeNull();
  by("details").dispatchEvent(new Event("toggle"));
  by("details").dispatchEvent(new Event("toggle"));
  expect(document.querySelectorAll("pre")).toHaveLength(1);
});

test("a result says what was right at once, and is copied without any answer", async () => {
  const written: string[] = [];
  Object.assign(navigator, { clipboard: { writeText: async (text: string) => written.push(text) } });
  const forms = ["choice", "size", "marks", "code"].map(
    (name) => (fixture as unknown as Record<string, Case>)[name]!.html,
  );
  document.body.innerHTML = `${forms.join("")}<div class="jvx jvx-result" data-title="Some forms"></div>`;
  start();
  const result = () => by(".jvx-result p").textContent;
  expect(result()).toBe("0 of 3 right at the first try."); // code is not checked
  const [choice, size] = Array.from(document.querySelectorAll("form"));
  const radios = choice!.querySelectorAll("input");
  radios[0]!.checked = true;
  choice!.requestSubmit();
  radios[1]!.checked = true;
  choice!.requestSubmit();
  expect(result()).toBe("0 of 3 right at the first try.");
  size!.querySelector("input")!.value = "12 KiB";
  size!.requestSubmit();
  size!.querySelector("input")!.value = "1";
  size!.requestSubmit();
  expect(result()).toBe("1 of 3 right at the first try.");
  press("Copy the result");
  await Promise.resolve();
  expect(written).toEqual(["Some forms\n◪■□\n1 of 3 right at the first try"]);
});

test("what was revealed first was not right at the first try", () => {
  document.body.innerHTML = `${(fixture as unknown as Record<string, Case>)["choice"]!.html}<div class="jvx-result"></div>`;
  start();
  press("Reveal");
  document.querySelectorAll("input")[1]!.checked = true;
  by<HTMLFormElement>("form").requestSubmit();
  expect(by(".jvx-result").textContent).toContain("0 of 1 right");
});
