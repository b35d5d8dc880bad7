//! The reference of all configuration keys, made from the code: a JSON Schema for editors and a page for the book.

use std::fmt::Write;

use schemars::{Schema, schema_for};
use serde_json::{Map, Value};

use crate::config::Config;

/// The JSON Schema of configuration files, as text.
pub fn schema_text() -> String {
    let schema: Schema = schema_for!(Config);
    serde_json::to_string_pretty(&schema).expect("a schema is valid JSON")
}

/// The page of the book with every key, its type, its default and what it means.
pub fn reference_page() -> String {
    let schema = schema_for!(Config).to_value();
    let page = Page { definitions: schema["$defs"].as_object().cloned().unwrap_or_default() };
    let mut text = String::from(
        "<!-- Made by the program from its code: do not edit. -->\n\
         # Configuration keys\n\n\
         Every key of a configuration file, for looking up. `softly presets NAME` prints a preset with all keys resolved, and\n\
         `softly presets --schema` prints the same reference as a JSON Schema, with which editors complete and check files.\n\
         A key in a table `[a.b]` called `c` is `a.b.c` for `--set a.b.c=value`.\n",
    );
    page.table(&mut text, "The file", "", &schema);
    text + "\nTo try:\n\n```sh\nsoftly presets --schema\n```\n"
}

/// The definitions that a schema refers to.
struct Page {
    definitions: Map<String, Value>,
}

impl Page {
    /// The schema with its reference resolved: what stands beside a reference is laid over what it refers to.
    fn resolved(&self, schema: &Value) -> Value {
        let Some(name) = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()) else { return schema.clone() };
        let mut whole = self.resolved(&self.definitions[name]);
        for (key, value) in schema.as_object().into_iter().flatten().filter(|(key, _)| *key != "$ref") {
            match (whole.get_mut(key), value) {
                (Some(Value::Object(below)), Value::Object(above)) if key == "properties" => {
                    below.extend(above.clone());
                }
                _ => whole[key] = value.clone(),
            }
        }
        whole
    }

    /// All that a value may be, each with its references resolved; the absent value is left out.
    fn variants(&self, schema: &Value) -> Vec<Value> {
        let schema = self.resolved(schema);
        match schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            Some(several) => several.iter().flat_map(|one| self.variants(one)).collect(),
            None if schema["type"] == "null" => Vec::new(),
            None => vec![schema],
        }
    }

    /// A table of keys, then the tables below it; `heading` names it.
    fn table(&self, text: &mut String, heading: &str, path: &str, schema: &Value) {
        let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) else {
            return;
        };
        write!(text, "\n## {heading}\n\n").expect("text grows");
        if let Some(meaning) = schema["description"].as_str() {
            write!(text, "{}\n\n", one_line(meaning)).expect("text grows");
        }
        *text += "| key | value | default | meaning |\n|---|---|---|---|\n";
        for (key, property) in properties {
            let default = property.get("default").map_or_else(String::new, |d| format!("`{d}`"));
            let default = if default.len() > 60 { "see below".into() } else { default };
            let resolved = self.resolved(property);
            let meaning = one_line(resolved["description"].as_str().unwrap_or_default());
            writeln!(text, "| `{key}` | {} | {default} | {meaning} |", self.words(property)).expect("text grows");
        }
        for (key, property) in properties {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            for variant in self.variants(property) {
                self.below(text, &path, &variant);
            }
        }
    }

    /// The tables of one thing that the value at `path` may be.
    fn below(&self, text: &mut String, path: &str, variant: &Value) {
        if let Some((key, name)) = tag(variant) {
            let heading = format!("`[{path}]` with `{key} = \"{name}\"`");
            let mut settings = variant.clone();
            if let Some(properties) = settings["properties"].as_object_mut() {
                properties.remove(key);
            }
            return self.table(text, &heading, path, &settings);
        }
        // The entries of a list, and the values of a table whose keys are names.
        for inner in [&variant["items"], &variant["additionalProperties"]].into_iter().filter(|inner| inner.is_object())
        {
            for one in self.variants(inner) {
                self.table(text, &format!("Each of `{path}`"), path, &one);
            }
        }
        self.table(text, &format!("`[{path}]`"), path, variant);
    }

    /// The types of a value in words.
    fn words(&self, property: &Value) -> String {
        let mut words: Vec<String> = Vec::new();
        for variant in self.variants(property) {
            let word = word(&variant);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(" or ")
    }
}

/// The type of a value that is one thing only.
fn word(variant: &Value) -> String {
    if let Some((_, name)) = tag(variant) {
        return format!("table `{name}`");
    }
    if let Some(text) = variant["const"].as_str() {
        return format!("`\"{text}\"`");
    }
    if let Some(words) = variant["enum"].as_array() {
        return words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(" or ");
    }
    let kind = |name: &str| match name {
        "integer" => "whole number",
        "number" => "number",
        "boolean" => "true or false",
        "string" => "text",
        "array" => "list",
        _ => "table",
    };
    match &variant["type"] {
        Value::String(name) => kind(name).into(),
        Value::Array(names) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.map(kind).collect::<Vec<_>>().join(" or ")
        }
        _ => "any value".into(),
    }
}

/// The key and value of the tag that says which table a variant is.
fn tag(variant: &Value) -> Option<(&'static str, &str)> {
    ["kind", "shape"].into_iter().find_map(|key| Some((key, variant["properties"][key]["const"].as_str()?)))
}

/// Text for a cell of a Markdown table.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SOFTLY_BLESS=1 cargo test reference` writes the page anew.
    #[test]
    fn the_page_in_the_book_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/configuration-keys.md");
        let page = reference_page();
        if std::env::var_os("SOFTLY_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == page, "book/src/configuration-keys.md is stale: run with SOFTLY_BLESS=1 to write it anew");
    }

    #[test]
    fn the_schema_knows_every_key_that_presets_use() {
        let schema: Value = serde_json::from_str(&schema_text()).unwrap();
        let page = Page { definitions: schema["$defs"].as_object().unwrap().clone() };
        let mut missing = Vec::new();
        for (name, text) in crate::config::presets::PRESETS {
            let table: toml::Table = toml::from_str(text).unwrap();
            let value = serde_json::to_value(&table).unwrap();
            unknown_keys(&page, &schema, &value, name, &mut missing);
        }
        assert!(missing.is_empty(), "{missing:?}");
        let page = reference_page();
        for key in ["`iterations`", "`solve_for`", "`generator`", "`multipliers`", "`scale`", "`learn`", "`sigma_min`"]
        {
            assert!(page.contains(key), "{key} is missing");
        }
    }

    fn unknown_keys(page: &Page, schema: &Value, value: &Value, path: &str, missing: &mut Vec<String>) {
        let Some(table) = value.as_object() else { return };
        let variants = page.variants(schema);
        for (key, inner) in table.iter().filter(|(key, _)| *key != "methods") {
            let path = format!("{path}.{key}");
            let named = |v: &Value| v["additionalProperties"].is_object().then(|| v["additionalProperties"].clone());
            let place = |v: &Value| v["properties"].get(key).cloned().or_else(|| named(v));
            let places: Vec<Value> = variants.iter().filter_map(place).collect();
            if places.is_empty() {
                missing.push(path);
            } else {
                unknown_keys(page, &serde_json::json!({ "anyOf": places }), inner, &path, missing);
            }
        }
    }
}
