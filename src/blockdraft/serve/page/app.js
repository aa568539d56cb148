// The page: which view is shown, what the keys and buttons do, what is said aloud.

import { fetchModel, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { rounded } from "./figures.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";

const THEMES = ["", "light", "dark"];
const NAMES = { "": "Auto", light: "Light", dark: "Dark" };
const WIDE = matchMedia("(min-width: 64rem)");

const root = document.documentElement;
const prompt = byId("prompt");
const settings = new Settings(byId("settings-form"));
const chat = new Chat(byId("log"));
const race = new Race(byId("race-place"));

let model = null;
let isRacing = false;
let running = null; // AbortController of the answer that is written

async function connect() {
  const state = byId("model");
  try {
    model = await fetchModel();
  } catch (error) {
    state.textContent = error.needsKey ? "locked" : error.message;
    showKeyForm(error.needsKey ? error.message : null);
    return;
  }
  showKeyForm(null);
  const { drafter, n_ctx: size } = model.meta;
  state.textContent = `${model.id} · ${drafter ? `drafted by ${drafter}` : "no drafter"}`;
  state.title = `context of ${rounded(size, 0)} tokens`;
  document.title = `${model.id} – blockdraft`;
  settings.setServer(model.meta);
  byId("legend").hidden = drafter === null;
  byId("race-note-plain").hidden = drafter !== null;
}

function showKeyForm(message) {
  byId("key-form").hidden = message === null;
  byId("key-message").textContent = message ?? "";
  if (message !== null) byId("key").focus();
  else if (WIDE.matches) prompt.focus();
}

async function submit() {
  const text = prompt.value.trim();
  if (!text || running) return;
  if (!checkSettings()) return;
  const { system, fields, drafted } = settings;
  running = new AbortController();
  const { signal } = running;
  prompt.value = "";
  showRunning();
  say("Answering.");
  const asked = { model: model?.id ?? "Model", system, fields, drafted, signal };
  const outcome = await (isRacing ? runRace(text, asked) : runChat(text, asked));
  running = null;
  showRunning();
  if (outcome instanceof Error) {
    say(outcome.message);
    if (outcome.needsKey) showKeyForm(outcome.message);
    if (!prompt.value) prompt.value = text;
  } else {
    say(outcome === "stopped" ? "Stopped." : "Answer complete.");
  }
}

async function runChat(text, asked) {
  byId("hint").hidden = true;
  const { answer, outcome } = await chat.ask(text, asked);
  showUsage(answer.usage);
  return outcome;
}

async function runRace(text, asked) {
  const outcome = await race.run(text, asked);
  prompt.value ||= text; // to run it again
  return outcome;
}

function checkSettings() {
  const panel = byId("settings");
  const wasHidden = panel.hidden;
  showSettings(true); // what is hidden cannot be pointed at
  const isValid = settings.check();
  if (isValid) showSettings(!wasHidden);
  return isValid;
}

function showRunning() {
  const isRunning = running !== null;
  const wasFocused = document.activeElement;
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("new").disabled = isRunning;
  if (wasFocused === byId("stop") || wasFocused === byId("send")) prompt.focus();
}

function showUsage(usage) {
  if (!usage || !model) return;
  const used = rounded(usage.total_tokens, 0);
  byId("usage").textContent = `context ${used} of ${rounded(model.meta.n_ctx, 0)}`;
}

function showView(toRace) {
  isRacing = toRace;
  byId("chat").hidden = toRace;
  byId("race").hidden = !toRace;
  byId("show-chat").ariaCurrent = toRace ? null : "page";
  byId("show-race").ariaCurrent = toRace ? "page" : null;
  byId("new").hidden = byId("usage").hidden = toRace;
  byId("send").textContent = toRace ? "Race" : "Send";
  prompt.focus();
}

function showSettings(isShown) {
  byId("settings").hidden = !isShown;
  byId("show-settings").ariaExpanded = String(isShown);
}

function nextTheme() {
  const now = root.dataset.theme ?? "";
  const theme = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (theme) {
    root.dataset.theme = theme;
    localStorage.setItem("blockdraft-theme", theme);
  } else {
    delete root.dataset.theme;
    localStorage.removeItem("blockdraft-theme");
  }
  showTheme();
}

function showTheme() {
  const name = NAMES[root.dataset.theme ?? ""];
  byId("theme").textContent = name;
  byId("theme").ariaLabel = `Theme: ${name}`;
}

function showOrigins() {
  root.classList.toggle("origins", byId("origins").checked);
}

function say(text) {
  byId("status").textContent = text;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (!WIDE.matches) showSettings(false);
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", () => {
  chat.clear();
  byId("usage").textContent = "";
  byId("hint").hidden = false;
  prompt.focus();
});
byId("show-chat").addEventListener("click", () => showView(false));
byId("show-race").addEventListener("click", () => showView(true));
byId("show-settings").addEventListener("click", () => showSettings(byId("settings").hidden));
byId("theme").addEventListener("click", nextTheme);
byId("origins").addEventListener("input", showOrigins);
byId("settings-form").addEventListener("reset", () => setTimeout(showOrigins));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value.trim());
  byId("key").value = "";
  connect();
});

showSettings(WIDE.matches);
showTheme();
showOrigins();
connect();
