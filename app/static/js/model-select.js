// The menu of the ready models of this page's system.
import { models } from "./api.js";
import { byId, h, settings, t } from "./ui.js";

const choice = byId("model");

/** Return the name of the chosen model; empty for the API's default. */
export function modelToAsk() {
  const name = choice?.value ?? settings.model;
  return name === settings.api_model ? "" : name;
}

/** Offer the models that are ready now; keep the chosen model if it is one of them. */
export async function refresh() {
  if (!choice) return;
  let listed;
  try {
    listed = await models();
  } catch {
    return; // the status above the form shows the error
  }
  const before = choice.value;
  // The newest version of a model comes first and needs only the name; others are NAME/VERSION.
  const names = listed.models.map(({ name, version }, at, all) =>
    (all[at - 1]?.name === name ? `${name}/${version}` : name));
  if (!names.includes(settings.model)) names.unshift(settings.model);
  const offered = [...choice.options].map(({ value }) => value);
  if (names.join() === offered.join()) return;
  choice.replaceChildren(...names.map((name) =>
    h("option", { value: name }, name === settings.model ? t("model_default", { name }) : name)));
  choice.value = names.includes(before) ? before : settings.model;
}
