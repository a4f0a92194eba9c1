/** The stepper, which is a separate widget. */

export { fillStepper } from "../../stepper/index";
export { default as sheet } from "../../styles/stepper.css";
