/** The graph: its pane, its layout with the worker for that, its drawing. */

export { GraphPane } from "../../graph/pane";
export { default as sheet } from "../../styles/graph.css";
