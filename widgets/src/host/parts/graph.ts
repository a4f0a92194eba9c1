/** The graph: its pane, layout, worker and drawing. */

export { GraphPane } from "../../graph/pane";
export { default as sheet } from "../../styles/graph.css";
