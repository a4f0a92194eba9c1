import "./style.css";

/** The explorer as an anywidget module. */
export default {
  render({ el }: { el: HTMLElement }): void {
    el.textContent = "jaxviz";
  },
};
