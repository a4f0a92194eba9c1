/** Keeps the keyboard focus in the explorer after a key press. */

/** The focused element in the document or shadow root of an element. */
export function focused(within: HTMLElement): Element | null {
  const tree = within.getRootNode();
  return tree instanceof ShadowRoot ? tree.activeElement : document.activeElement;
}

/**
 * Takes the focus when a click or key has removed or hidden the focused element; otherwise the next key would go to the notebook. Returns a
 * function to stop.
 */
export function keepFocus(root: HTMLElement): () => void {
  let last: HTMLElement | null = null;
  const onFocus = (event: FocusEvent) => {
    last = event.target as HTMLElement;
  };
  const onAct = () =>
    requestAnimationFrame(() => {
      if (last === null || (last.isConnected && last.getClientRects().length > 0)) return;
      const now = focused(root);
      if (now !== null && now !== last && now !== document.body) return;
      root.focus({ preventScroll: true });
    });
  root.addEventListener("focusin", onFocus);
  for (const name of ["click", "keydown"]) root.addEventListener(name, onAct, true);
  return () => {
    root.removeEventListener("focusin", onFocus);
    for (const name of ["click", "keydown"]) root.removeEventListener(name, onAct, true);
  };
}
