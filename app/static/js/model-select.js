// The choice of the model that answers: the models of this page's system that are ready.
import { models } from "./api.js";
import { byId, h, settings, t } from "./ui.js";

const choice = byId("model");

/** The name of the chosen model; empty for the default of the API, which needs no name. */
export function modelToAsk() {
  const name = choice?.value ?? settings.model;
  return name === settings.api_model ? "" : name;
}

/** Offer what is ready now, and keep what was chosen if it is among them. */
export async function refresh() {
  if (!choice) return;
  let listed;
  try {
    listed = await models();
  } catch {
    return; // the status above the form says what is wrong
  }
  const before = choice.value;
  // The newest version of a model comes first and is asked by the name alone, others as NAME/VERSION.
  const names = listed.models.map(({ name, version }, at, all) =>
    (all[at - 1]?.name === name ? `${name}/${version}` : name));
  if (!names.includes(settings.model)) names.unshift(settings.model);
  const offered = [...choice.options].map(({ value }) => value);
  if (names.join() === offered.join()) return;
  choice.replaceChildren(...names.map((name) =>
    h("option", { value: name }, name === settings.model ? t("model_default", { name }) : name)));
  choice.value = names.includes(before) ? before : settings.model;
}
