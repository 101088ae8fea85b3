import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import globals from "globals";

export default defineConfig([
  js.configs.recommended,
  { files: ["assets/**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["tests/js/**/*.js"], languageOptions: { globals: globals.nodeBuiltin } },
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
]);
