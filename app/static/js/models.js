// The switch for the model that answers; what it offers is what Triton has ready.
import { models } from "./api.js";
import { byId, h, settings, t } from "./base.js";

const choice = byId("model");

/** The chosen model's name, empty for the deployment's default. */
export const chosen = () => (choice && choice.value !== settings.model ? choice.value : "");

/** Offer what is ready now, and keep what was chosen if it is among them. */
export async function refresh() {
  if (!choice) return;
  let listed;
  try {
    listed = await models();
  } catch {
    return; // the state of things is told elsewhere
  }
  const before = choice.value;
  const names = listed.models.map(({ name }) => name);
  if (!names.includes(listed.default)) names.unshift(listed.default);
  const offered = [...choice.options].map(({ value }) => value);
  if (names.join() === offered.join()) return;
  choice.replaceChildren(...names.map((name) =>
    h("option", { value: name }, name === listed.default ? t("model_default", { name }) : name)));
  choice.value = names.includes(before) ? before : listed.default;
}
