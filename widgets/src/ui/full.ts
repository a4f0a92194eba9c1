/** The whole explorer on the full screen: all of it, with its head and its questions. */

import { button, svg } from "./dom";

/** Fills the window of a page that may not use the screen, such as one in a frame. */
const FILLS = "jv-fills";

/** The button and the key that show a widget on the full screen, and in its place again. */
export class FullScreen {
  readonly button: HTMLButtonElement;

  constructor(private readonly root: HTMLElement) {
    const corners = svg("path", {
      d: "M1 4V1H4M8 1H11V4M11 8V11H8M4 11H1V8",
      fill: "none",
      stroke: "currentColor",
    });
    const icon = svg("svg", { viewBox: "0 0 12 12", width: 11, "aria-hidden": "true" }, corners);
    this.button = button([icon, " Full screen"], this.toggle, {
      class: "jv-button jv-full",
      title: "Everything on the full screen (W); Escape leaves it",
      "data-testid": "full-screen",
    });
    document.addEventListener("fullscreenchange", this.show);
    // Before other meanings of Escape.
    root.addEventListener("keydown", this.onKey, true);
    this.show();
  }

  destroy(): void {
    document.removeEventListener("fullscreenchange", this.show);
    this.root.removeEventListener("keydown", this.onKey, true);
    this.leave();
  }

  get isOn(): boolean {
    const { root } = this;
    // Outside of a shadow tree its host is in its place.
    const tree = root.getRootNode() as Document | ShadowRoot;
    return tree.fullscreenElement === root || root.classList.contains(FILLS);
  }

  readonly toggle = (): void => {
    if (this.isOn) {
      this.leave();
      return;
    }
    const fill = () => {
      this.root.classList.add(FILLS);
      this.show();
    };
    if (this.root.requestFullscreen) this.root.requestFullscreen().catch(fill);
    else fill();
  };

  private leave(): void {
    const isOn = this.isOn && !this.root.classList.contains(FILLS);
    this.root.classList.remove(FILLS);
    if (isOn) void document.exitFullscreen();
    this.show();
  }

  private readonly show = (): void => this.button.setAttribute("aria-pressed", String(this.isOn));

  private readonly onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Escape" || !this.root.classList.contains(FILLS)) return;
    // The key closes these first.
    if (this.root.matches(".is-playing, .is-presenting")) return;
    if (this.root.querySelector("dialog[open], .jv-found:not([hidden])")) return;
    event.stopPropagation();
    this.leave();
  };
}
