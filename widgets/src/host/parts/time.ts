/** The memory over time, and what zooms all charts over time. */

export { MemoryPane } from "../../panes/memory";
export { TimeControl } from "../../panes/timecontrol";
export { default as sheet } from "../../styles/time.css";
