/** What waits until the pointer is released: an element that is replaced while it is pressed gets no click. */

/** The longest that anything waits for a drag, or for a release that no event tells of, in milliseconds. */
const LONGEST = 3000;

let isPressed = false;
let timer: ReturnType<typeof setTimeout> | undefined;
let waiting: (() => void)[] = [];

function release(): void {
  clearTimeout(timer);
  isPressed = false;
  const calls = waiting;
  waiting = [];
  for (const call of calls) call();
}

globalThis.addEventListener?.(
  "pointerdown",
  () => {
    isPressed = true;
    clearTimeout(timer);
    timer = setTimeout(release, LONGEST);
  },
  true,
);
for (const name of ["pointerup", "pointercancel"])
  globalThis.addEventListener?.(
    name,
    () => {
      clearTimeout(timer);
      timer = setTimeout(release); // after the click
    },
    true,
  );

/** Calls at once, or once the pointer is released; in the order in which they were given. */
export function whenReleased(call: () => void): void {
  if (isPressed) waiting.push(call);
  else call();
}
