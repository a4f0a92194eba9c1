/** A text editor in whatever tree its widget is shown in. */

import { EditorView, type EditorViewConfig } from "@codemirror/view";

/**
 * An editor that looks right in a shadow tree too, where marimo shows widgets: its style sheet goes into the tree that it stands in.
 *
 * @param root the element of the widget, which may be put into its tree later.
 */
export function editor(root: HTMLElement, config: EditorViewConfig): EditorView {
  const view = new EditorView(config);
  const settle = () => {
    const tree = root.getRootNode();
    if (typeof ShadowRoot !== "undefined" && tree instanceof ShadowRoot) view.setRoot(tree);
  };
  settle();
  if (!root.isConnected) requestAnimationFrame(settle);
  return view;
}
