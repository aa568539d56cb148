// Light or dark, before anything is shown: as chosen, or as the system is.
(() => {
  const theme = localStorage.getItem("blockdraft-theme");
  if (theme) document.documentElement.dataset.theme = theme;
})();
