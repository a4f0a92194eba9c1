/** Sizes, which jsdom lacks. */

import { vi } from "vitest";

/** Gives every observed element this size. */
export function layOut(width: number, height: number): void {
  vi.stubGlobal(
    "ResizeObserver",
    class {
      constructor(private readonly callback: (entries: { contentRect: object }[]) => void) {}
      observe(): void {
        this.callback([{ contentRect: { width, height } }]);
      }
      unobserve(): void {}
      disconnect(): void {}
    },
  );
}

/** What CodeMirror measures, and dialogs. */
export function standIn(): void {
  const none = {
    length: 0,
    item: () => null,
    [Symbol.iterator]: [][Symbol.iterator],
  } as unknown as DOMRectList;
  Range.prototype.getClientRects = () => none;
  Range.prototype.getBoundingClientRect = () => new DOMRect();
  HTMLDialogElement.prototype.showModal = function () {
    this.show();
  };
  HTMLDialogElement.prototype.show = function () {
    this.open = true;
  };
  HTMLDialogElement.prototype.close = function () {
    this.open = false;
  };
}
